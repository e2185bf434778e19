"""`reput plugin`: installed dispatchers, tests of their contract, and a project for a new one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import ConfigOption, FormatOption, OutputFormat, SetOption, epilog, whole_number
from reput.cli.terminal.output import Printer, cell_text, print_table, table_text, write_line
from reput.process.logs.exception_text import exception_line

if TYPE_CHECKING:
    from reput.process.plugin.catalogue import CatalogueEntry
    from reput.process.plugin.describe import Answer

__all__ = ["register"]

LIST_EXAMPLE = "reput plugin list"
NEW_EXAMPLE = "reput plugin new word_count --directory word_count"
SHOW_EXAMPLE = "reput plugin show spark_export"
TEST_EXAMPLE = "reput plugin test consume_queue --clause any_batches --clause truncates"


def list_plugins(
    config: ConfigOption = None, assignments: SetOption = None, output_format: FormatOption = OutputFormat.TEXT
) -> int:
    """List the installed dispatchers: their origin, and whether they can be loaded.

    Each is imported in its own process and asked for its declaration. A configuration supplies options, and adds
    dispatchers that it defines under other names. Exit code 1: one of them is BROKEN.
    """
    from reput.process.plugin.catalogue import installed_dispatchers, select_dispatchers
    from reput.process.plugin.describe import describe
    from reput.settings import load_settings

    settings = load_settings(config, assignments or ()).settings
    entries = {**installed_dispatchers()}
    for entry in select_dispatchers(settings.dispatcher_plugins, settings.dispatcher_plugins):
        entries[entry.name] = entry
    rows = [
        plugin_row(entry, describe(entry, settings.dispatcher_options.get(name, {})))
        for name, entry in sorted(entries.items())
    ]
    columns = ("name", "plugin", "distribution", "version", "state", "reads", "after", "origin", "error")
    print_table(rows, columns, output_format)
    return ANSWER_IS_NO if any(row["state"] == "BROKEN" for row in rows) else 0


def plugin_row(entry: CatalogueEntry, answer: Answer) -> dict[str, Any]:
    """Return the row of one dispatcher.

    READY: it was loaded. OPTIONS: it was loaded but requires options. BROKEN: it cannot be loaded.
    """
    described = answer.description or answer.offered
    broken = exception_line(answer.broken) if answer.broken else None
    return {
        "name": entry.name,
        "plugin": entry.plugin,
        "distribution": entry.distribution,
        "version": entry.version,
        "state": "BROKEN" if broken else "OPTIONS" if answer.refused else "READY",
        "module": entry.module,
        "origin": entry.origin,
        "editable": entry.editable,
        "reads": described.reads if described else None,
        "feeds": described.feeds if described else None,
        "after": list(described.after) if described else None,
        "options": [option.name for option in described.options] if described else None,
        "error": broken or answer.refused,
    }


def show_plugin(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of an installed or configured dispatcher.", show_default=False)
    ],
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show the declaration of one dispatcher, and its options with their types and defaults.

    JSON also has their schema. Exit code 1: it is BROKEN.
    """
    from reput.process.plugin.catalogue import select_dispatchers
    from reput.process.plugin.describe import describe
    from reput.settings import load_settings

    settings = load_settings(config, assignments or ()).settings
    (entry,) = select_dispatchers([name], settings.dispatcher_plugins)
    answer = describe(entry, settings.dispatcher_options.get(name, {}))
    declared = answer.description or answer.offered
    described = {"options": [], "schema": None} if declared is None else msgspec.to_builtins(declared)
    Printer(output_format, declaration_text).row(plugin_row(entry, answer) | described)
    return ANSWER_IS_NO if answer.broken else 0


def declaration_text(row: Mapping[str, Any]) -> str:
    """Return a dispatcher's declaration as text: line by line, and a table of its options."""
    lines = [
        f"{key}={cell_text(value)}"
        for key, value in row.items()
        if key not in ("options", "schema") and value not in (None, [], ())
    ]
    if row["options"]:
        options = [
            option | {"default": None if option["required"] else repr(option["default"])} for option in row["options"]
        ]
        lines += ["", table_text(options, ("name", "type", "required", "default"))]
    elif row["state"] != "BROKEN":
        lines += ["", "It has no options."]
    return "\n".join(lines)


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the dispatcher, like word_count.")],
    directory: Annotated[
        Path | None, typer.Option("--directory", metavar="DIR", help="Folder of the project; default: ./reput-NAME.")
    ] = None,
) -> None:
    """Create a project for a new dispatcher: it installs, type-checks and passes its tests immediately."""
    from reput.cli.plugin_project import CHOOSE_ANOTHER, ProjectNames, write_project
    from reput.errors import ConfigError
    from reput.process.plugin.catalogue import installed_dispatchers

    names = ProjectNames(name)
    taken = installed_dispatchers().get(name)
    if taken is not None:
        raise ConfigError(
            f"a dispatcher with this name is already installed: dispatcher={name} distribution={taken.distribution}",
            CHOOSE_ANOTHER,
        )
    folder = directory or Path(names.distribution)
    for path in write_project(names, folder):
        write_line(str(path))
    print(f"Next: cd {folder} && pip install -e '.[test]' && pytest && mypy", file=sys.stderr)


def hold_to_contract(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an installed dispatcher.", show_default=False)],
    clauses: Annotated[
        list[str] | None,
        typer.Option("--clause", metavar="CLAUSE", help="Only this clause; may be repeated."),
    ] = None,
    time_max: Annotated[
        int, typer.Option("--time-max", metavar="SECONDS", parser=whole_number(1), help="Time limit per clause.")
    ] = 120,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Test a dispatcher against its contract, clause by clause, in separate processes and folders.

    Options of the dispatcher come from the configuration, as in --set dispatchers.NAME.OPTION=VALUE. Exit code 1: a
    clause is broken.
    """
    from reput.errors import ConfigError
    from reput.process.contract.host import promises
    from reput.process.contract.suite import run_contract
    from reput.settings import load_settings

    known = promises()
    for clause in clauses or ():
        if clause not in known:
            raise ConfigError(f"unknown clause: clause={clause} known={','.join(known)}")
    settings = load_settings(config, assignments or (), dispatchers=[name]).settings
    printer = Printer(output_format, clause_text)
    states = []
    for row in run_contract(name, settings, clauses or list(known), time_max=time_max):
        printer.row(msgspec.to_builtins(row))
        sys.stdout.flush()
        states.append(row.state)
    if output_format is OutputFormat.TEXT:
        write_line(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return ANSWER_IS_NO if "broken" in states else 0


def clause_text(row: Mapping[str, Any]) -> str:
    """Return the result of one clause as text: broken ones with their reason and the plugin's traceback."""
    lines = [f"{row['state']:14}  {row['clause']}: {row['promise']}"]
    lines += [f"{'':16}{line}" for line in (row["traceback"] or row["reason"] or "").splitlines()]
    return "\n".join(lines)


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*."""
    for name, verb, example in (
        ("list", list_plugins, LIST_EXAMPLE),
        ("show", show_plugin, SHOW_EXAMPLE),
        ("new", new_plugin, NEW_EXAMPLE),
        ("test", hold_to_contract, TEST_EXAMPLE),
    ):
        application.command(name, epilog=epilog(example))(verb)
