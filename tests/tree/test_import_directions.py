"""Import directions: each part imports only parts below it, so that each can be read without the others."""

from __future__ import annotations

import pytest

from source_tree import OURS, ROOT, Module, modules

# Each part, lowest first, with the parts that it imports: exactly these, so that the table can be read as a picture.
IMPORTS: dict[str, set[str]] = {
    "reput_hooks": set(),
    "reput.errors": set(),
    "reput.kernel": {"reput.errors"},
    "reput.lazy_exports": set(),
    "reput.settings": {"reput.errors", "reput.lazy_exports"},
    "reput.json_encoding": set(),
    "reput.in_thread": set(),
    "reput.closing_block": {"reput.in_thread"},
    "reput.token_bucket": set(),
    "reput.filter": {"reput.errors", "reput.lazy_exports"},
    "reput.remoting": {"reput.errors", "reput.json_encoding"},
    "reput.namesrv": {"reput.errors", "reput.json_encoding", "reput.remoting"},
    "reput.store": {
        "reput_hooks",
        "reput.errors",
        "reput.json_encoding",
        "reput.kernel",
        "reput.settings",
        "reput.filter",
    },
    # From remoting, only the parser of addresses; from the store, only the threads.
    "reput.lease": {"reput.errors", "reput.remoting", "reput.store"},
    "reput.ring": {"reput.errors", "reput.kernel"},
    "reput.argument_checks": {"reput_hooks", "reput.errors", "reput.store"},
    "reput.access": {"reput_hooks", "reput.errors", "reput.settings", "reput.remoting", "reput.argument_checks"},
    "reput.process": {
        "reput_hooks",
        "reput.errors",
        "reput.kernel",
        "reput.settings",
        "reput.in_thread",
        "reput.store",
        "reput.ring",
        "reput.argument_checks",
    },
    # From remoting, only the codes of refusals.
    "reput.consume": {
        "reput_hooks",
        "reput.errors",
        "reput.kernel",
        "reput.settings",
        "reput.in_thread",
        "reput.closing_block",
        "reput.filter",
        "reput.remoting",
        "reput.store",
        "reput.argument_checks",
    },
    # From the store, only the threads; from consume, only the types of arguments.
    "reput.worker": {
        "reput_hooks",
        "reput.errors",
        "reput.in_thread",
        "reput.remoting",
        "reput.store",
        "reput.argument_checks",
        "reput.consume",
    },
    "reput.embedded": {
        "reput_hooks",
        "reput.errors",
        "reput.kernel",
        "reput.settings",
        "reput.in_thread",
        "reput.closing_block",
        "reput.filter",
        "reput.store",
        "reput.ring",
        "reput.argument_checks",
        "reput.process",
        "reput.consume",
        "reput.worker",
    },
    # A copy is an embedded store whose writer is a master elsewhere.
    "reput.replication": {
        "reput.errors",
        "reput.settings",
        "reput.in_thread",
        "reput.token_bucket",
        "reput.remoting",
        "reput.access",
        "reput.store",
        "reput.lease",
        "reput.argument_checks",
        "reput.process",
        "reput.consume",
        "reput.embedded",
    },
    "reput.metrics": {"reput.errors", "reput.store", "reput.ring", "reput.process", "reput.consume", "reput.embedded"},
    "reput.broker": {
        "reput_hooks",
        "reput.errors",
        "reput.json_encoding",
        "reput.kernel",
        "reput.settings",
        "reput.in_thread",
        "reput.token_bucket",
        "reput.filter",
        "reput.remoting",
        "reput.namesrv",
        "reput.access",
        "reput.store",
        "reput.lease",
        "reput.process",
        "reput.consume",
        "reput.embedded",
        "reput.replication",
        "reput.metrics",
    },
    # From namesrv, only the bodies of routes.
    "reput.client": {
        "reput_hooks",
        "reput.errors",
        "reput.json_encoding",
        "reput.in_thread",
        "reput.closing_block",
        "reput.filter",
        "reput.remoting",
        "reput.namesrv",
        "reput.access",
        "reput.store",
        "reput.argument_checks",
        "reput.consume",
        "reput.worker",
    },
    # From the processes, only the building of views.
    "reput.backup": {"reput.errors", "reput.settings", "reput.store", "reput.process"},
    "reput.watched": {
        "reput.settings",
        "reput.process",
        "reput.consume",
        "reput.embedded",
        "reput.metrics",
        "reput.client",
    },
    "reput.top": {"reput.errors", "reput.process", "reput.metrics", "reput.client", "reput.watched"},
    "reput.console": {
        "reput_hooks",
        "reput.errors",
        "reput.settings",
        "reput.in_thread",
        "reput.remoting",
        "reput.store",
        "reput.process",
        "reput.consume",
        "reput.embedded",
        "reput.metrics",
        "reput.client",
        "reput.watched",
    },
    "reput.telemetry": {"reput_hooks", "reput.errors", "reput.store", "reput.embedded", "reput.metrics"},
    "reput.table": {"reput_hooks", "reput.errors", "reput.kernel", "reput.store"},
    "reput_plugins": {
        "reput_hooks",
        "reput.errors",
        "reput.kernel",
        "reput.settings",
        "reput.filter",
        "reput.store",
        "reput.table",
    },
    "pyspark_reput": {"reput_hooks", "reput.errors", "reput.settings", "reput.store", "reput.table"},
}
PLUGINS = ("reput_plugins", "pyspark_reput")
# The rooms of each part, lowest first. Modules beside the rooms stand above all rooms.
ROOMS: dict[str, tuple[str, ...]] = {
    "reput.store": (
        "disk",
        "service",
        "record",
        "log",
        "config",
        "index",
        "queue",
        "state",
        "ext",
        "recovery",
        "check",
        "retention",
        "reader",
        "writer",
    ),
    "reput.broker": ("state", "requests", "admin"),
    "reput.cli": ("plugin_project", "terminal", "target", "verbs"),
    "reput.consume": ("registry", "pull", "delivery", "administration", "groups"),
    "reput.process": (
        "system",
        "logs",
        "views",
        "frames",
        "plugin",
        "group",
        "dispatcher",
        "control",
        "supervisor",
        "owner",
        "contract",
    ),
}


def part_of(name: str) -> str:
    """Return the part that a module, or a name in it, belongs to: ``reput.store`` or ``reput_hooks``."""
    pieces = name.split(".")
    return ".".join(pieces[:2]) if pieces[0] == "reput" else pieces[0]


def plugin_of(name: str) -> str:
    """Return the plugin that a module belongs to: a module or folder of `reput_plugins`, or a package beside it."""
    pieces = name.split(".")
    return ".".join(pieces[:2]) if pieces[0] == "reput_plugins" else pieces[0]


def our_imports(module: Module) -> list[tuple[str, int]]:
    """Return the imports of our own modules with their lines; the package itself, for its version, has no part."""
    return [
        (name, line)
        for name, line in module.imports
        if name.split(".")[0] in OURS and name not in ("reput", "reput.__version__")
    ]


def room_of(part: str, name: str) -> str | None:
    """Return the room of *part* that a module, or a name in it, belongs to.

    "" for modules beside the rooms, None for another part.
    """
    if part_of(name) != part:
        return None
    room = name.removeprefix(part).removeprefix(".").partition(".")[0]
    return room if room in ROOMS[part] else ""


@pytest.mark.parametrize("part", sorted(ROOMS))
def test_a_room_imports_only_from_the_rooms_below(part):
    """The disk knows no record, the record no log, and so on up to the writer."""
    order = (*ROOMS[part], "")
    wrong = [
        f"{module.source}:{line} imports {name}"
        for module in modules()
        if (room := room_of(part, module.name)) is not None
        for name, line in our_imports(module)
        if (below := room_of(part, name)) is not None and order.index(below) > order.index(room)
    ]
    assert not wrong


@pytest.mark.parametrize("part", sorted(ROOMS))
def test_every_folder_of_a_part_is_a_room(part):
    """A new folder must first declare what it may import."""
    folder = ROOT / "core" / part.replace(".", "/")
    assert sorted(path.parent.name for path in folder.glob("*/__init__.py")) == sorted(ROOMS[part])


@pytest.mark.parametrize("part", sorted(IMPORTS))
def test_a_part_imports_the_parts_that_the_table_says(part):
    """A store that knew of processes could not be tested without them."""
    wrong = [
        f"{module.source}:{line} imports {name}"
        for module in modules()
        if part_of(module.name) == part
        for name, line in our_imports(module)
        if part_of(name) not in {part, *IMPORTS[part]}
    ]
    assert not wrong


@pytest.mark.parametrize("part", sorted(IMPORTS))
def test_the_table_says_no_more_than_a_part_imports(part):
    """An entry that is not used would let a wrong import in, and make the picture wrong."""
    imported = {
        part_of(name) for module in modules() if part_of(module.name) == part for name, _ in our_imports(module)
    }
    assert IMPORTS[part] <= imported


def test_a_part_imports_only_parts_above_it_in_the_table():
    """So no two parts import each other, however indirectly."""
    order = list(IMPORTS)
    assert [
        f"{part} imports {name}"
        for part, imported in IMPORTS.items()
        for name in imported
        if order.index(name) >= order.index(part)
    ] == []


def test_a_part_takes_nothing_but_the_version_from_the_package_itself():
    """The public names lead to everything: a part that used them would import parts above it."""
    wrong = [
        f"{module.source}:{line} {name}"
        for module in modules()
        if part_of(module.name) in IMPORTS and "reput" in {name for name, _ in module.imports}
        for name, line in module.names
        if name.startswith("reput.") and name.count(".") == 1 and name != "reput.__version__"
    ]
    assert not wrong


def test_every_folder_of_the_engine_has_its_place_in_the_order():
    """A new folder must first declare what it may import."""
    folders = {part_of(module.name) for module in modules() if module.name.count(".") > 1 or "." not in module.name}
    assert folders - IMPORTS.keys() <= {"reput", "reput.bench", "reput.cli", "reput.demo"}


def test_every_part_of_the_order_is_there():
    """An entry without a module would have no effect."""
    there = {part_of(module.name) for module in modules()}
    named = {name for allowed in IMPORTS.values() for name in allowed} | IMPORTS.keys() | set(PLUGINS)
    assert named <= there


def test_only_the_command_line_imports_the_command_line():
    """Typer and rich are for terminals; a program that opens a store never loads them."""
    wrong = [
        f"{module.source}:{line}"
        for module in modules()
        if part_of(module.name) != "reput.cli"
        for name, line in module.imports
        if part_of(name) == "reput.cli" or name.split(".")[0] in ("typer", "rich", "click")
    ]
    assert not wrong


def test_the_core_never_imports_a_plugin():
    """It finds the built-in ones by entry point, like all others."""
    wrong = [
        f"{module.source}:{line} imports {name}"
        for module in modules()
        if module.name.split(".")[0] not in PLUGINS
        for name, line in our_imports(module)
        if name.split(".")[0] in PLUGINS
    ]
    assert not wrong


def test_no_plugin_imports_another():
    """If a view needs data of another view, it reads it from disk, as a third-party plugin would."""
    wrong = [
        f"{module.source}:{line} imports {name}"
        for module in modules()
        if module.name.split(".")[0] in PLUGINS
        for name, line in our_imports(module)
        if name.split(".")[0] in PLUGINS and plugin_of(name) != plugin_of(module.name)
    ]
    assert not wrong
