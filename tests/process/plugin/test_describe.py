"""A plugin's declarations, requested in a separate process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest

from reput.errors import ConfigError, DispatcherError
from reput.process.plugin.catalogue import installed_dispatchers, select_dispatchers
from reput.process.plugin.describe import describe
from reput.process.plugin.description import portable_description
from reput.process.plugin.plugin import convert_options, load_plugin
from reput_hooks import DispatcherDescription

pytestmark = pytest.mark.processes

SOURCE = """
import pathlib
with open({marker!r}, "a") as file:
    file.write("imported\\n")
print("rubbish on stdout")
import msgspec
from reput_hooks import *

class Options(msgspec.Struct):
    path: str
    limit: int = 10
    names: list[str] = []

@hookimpl
def reput_create_dispatcher(context):
    raise NotImplementedError

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(
        after=("index",), after_failed="proceed", reads="appended", feeds="positions", needs_properties=True,
        options=Options, store_folders=("folder",),
    )
"""


@pytest.fixture
def plugin(plugins, tmp_path):
    """A plugin that counts its imports; the function returns its catalogue entry."""
    marker = tmp_path / "imports"

    def entry(name="plugin", source=SOURCE):
        plugins.add(name, source=source.format(marker=str(marker)))
        return installed_dispatchers()[name]

    entry.imports = lambda: marker.read_text().count("imported") if marker.exists() else 0
    return entry


def test_a_description_comes_back_whole(plugin):
    """With the options as names, types and defaults; nothing is imported here."""
    entry = plugin()
    found = describe(entry, {"path": "x"}).declared()
    assert (found.after, found.after_failed) == (("index",), "proceed")
    assert (found.reads, found.feeds) == ("appended", "positions")
    assert (found.needs_properties, found.store_folders, found.api_version) == (True, ("folder",), 1)
    assert [(option.name, option.type, option.required, option.default) for option in found.options] == [
        ("path", "str", True, None),
        ("limit", "int", False, 10),
        ("names", "list[str]", False, []),
    ]
    assert entry.module not in sys.modules


def test_it_is_asked_once_per_version_and_options(plugin, plugins):
    """The answer is cached in the user's cache directory."""
    entry = plugin()
    for _ in range(3):
        describe(entry, {"path": "x"})
    assert plugin.imports() == 1
    plugins.version = "2.0"
    describe(plugin(), {"path": "x"})
    assert plugin.imports() == 2
    describe(plugin(), {"path": "y"})
    assert plugin.imports() == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "x", "limit": "many"}, r"dispatchers\.plugin\.limit .*'many'"),
        ({"path": "x", "limt": 1}, r"dispatchers\.plugin\.limt known=path,limit,names"),
        ({}, r"dispatchers\.plugin\.path reason=.*`path`"),
        ({"path": "x", "names": ["a", 3]}, r"dispatchers\.plugin\.names"),
    ],
    ids=["wrong type", "unknown", "missing", "wrong element"],
)
def test_wrong_options_are_refused_by_name(plugin, options, text):
    """Before anything runs; the field is named."""
    with pytest.raises(ConfigError, match=text):
        describe(plugin(), options).declared()


class Place(msgspec.Struct):
    """Options with a default that JSON cannot represent."""

    path: Path = Path("/lake")
    pattern: re.Pattern[str] = re.compile("x")


def test_options_that_json_does_not_know_are_described_all_the_same():
    """By their Python names, without a schema."""
    found = portable_description(DispatcherDescription(options=Place))
    assert found.schema is None
    assert [(option.name, option.default) for option in found.options] == [
        ("path", "PosixPath('/lake')"),
        ("pattern", "re.compile('x')"),
    ]


class Checked(msgspec.Struct):
    """Options that are also checked by their author."""

    url: str
    url_count: int = 0
    password: str = ""

    def __post_init__(self):
        if not self.url.startswith("http"):
            raise ValueError("url must begin with http")
        if self.url_count < 0:
            raise KeyError("url_count")
        if self.url_count > 5:
            raise TypeError("too much of it")
        if self.password == "sesame":
            raise ValueError("password is too well known")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "dispatchers.hook.url reason=Object missing required field `url`"),
        ({"url": "ftp"}, "dispatchers.hook.url reason=url must begin with http"),
        ({"url": "http", "url_count": -1}, "dispatchers.hook.url_count reason=KeyError: 'url_count'"),
        ({"url": "http", "url_count": 6}, "dispatchers.hook reason=too much of it"),
        ({"url": "http", "password": "sesame"}, "dispatchers.hook.password reason=password is too well known"),
    ],
    ids=["missing", "value", "another exception", "no option named", "secret"],
)
def test_an_option_that_the_author_s_check_refuses_keeps_its_name(options, text):
    """The same holds for a missing one. Its value, which may be secret, is omitted."""
    with pytest.raises(ConfigError) as error:
        convert_options("hook", options, Checked)
    assert str(error.value) == f"option of a dispatcher: {text}"


def test_a_refusal_shows_what_is_wrong_and_nothing_that_stands_beside_it():
    """It is written to the log, where passwords must not appear."""

    server = msgspec.defstruct("Server", [("port", int), ("password", str, "")], forbid_unknown_fields=True)
    option_type = msgspec.defstruct("Options", [("server", server), ("others", list[server], [])])
    given = {"port": "x", "password": "sesame"}
    for options, text in [
        ({"server": given}, "dispatchers.plugin.server.port reason=Expected `int`, got `str` value='x'"),
        ({"server": {"port": 1}, "others": [given]}, "dispatchers.plugin.others[0].port reason=Expected `int`"),
        ({"server": given | {"port": 1, "prt": 2}}, "dispatchers.plugin.server reason=Object contains unknown field"),
    ]:
        with pytest.raises(ConfigError) as error:
            convert_options("plugin", options, option_type)
        assert text in str(error.value)
        assert "sesame" not in str(error.value)


def test_texts_are_taken_for_numbers_where_such_are_declared(plugin):
    """Some sources of settings only have text."""
    assert describe(plugin(), {"path": "x", "limit": "7"}).declared()


def test_what_cannot_be_imported_is_broken_with_its_traceback_and_asked_again(plugin):
    """A missing library may be installed a minute later."""
    entry = plugin(source=SOURCE.replace("import msgspec", "import no_such_module"))
    for _ in range(2):
        answer = describe(entry, {})
        assert "ModuleNotFoundError: No module named 'no_such_module'" in answer.broken
    assert plugin.imports() == 2
    with pytest.raises(DispatcherError, match="no_such_module"):
        answer.declared()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ("after='consume_queue'", "field=after reason=Expected `array`, got `str` value='consume_queue'"),
        ("reads='durabel'", "field=reads reason=Invalid enum value 'durabel'"),
        ("needs_properties=1", "field=needs_properties reason=Expected `bool`, got `int` value=1"),
        ("api_version=True", "field=api_version reason=Expected `int`, got `bool` value=True"),
        ("options=dict", "field=options reason=Expected a subclass of `msgspec.Struct` value=<class 'dict'>"),
        ("store_folders=('commitlog',)", "field=store_folders .* value='commitlog'"),
        ("store_folders=('../other',)", "field=store_folders .* value='../other'"),
    ],
)
def test_what_no_dispatcher_can_declare_is_named(plugins, fields, text):
    """Otherwise a mistyped word would be ignored, and a view in the log's folder would remove the log."""
    plugins.add(
        "wrong",
        source="from reput_hooks import *\n@hookimpl\ndef reput_create_dispatcher(context):\n    pass\n@hookimpl\n"
        f"def reput_describe_dispatcher():\n    return DispatcherDescription({fields})",
    )
    (entry,) = select_dispatchers(["wrong"], {})
    with pytest.raises(DispatcherError, match=text):
        load_plugin(entry.name, entry.module).describe()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import os; os._exit(3)", "exit_status=3"),
        ("import os; os.kill(os.getpid(), 9)", "signal=9"),
        ("import time; time.sleep(1000)", "timeout="),
        ("raise SystemExit('enough')", "SystemExit: enough"),
        (
            "from reput_hooks import *\n@hookimpl\ndef reput_describe_dispatcher():\n"
            "    return DispatcherDescription(api_version=2)",
            "api_version=2 expected=1",
        ),
        ("from reput_hooks import *\n@hookimpl\ndef reput_describe_dispatcher():\n    return 7", "type=int"),
        ("from reput_hooks import *\n@hookimpl\ndef reput_create_dispatcher(contxt):\n    pass", "contxt"),
    ],
    ids=["exits", "is killed", "hangs", "leaves", "other version", "wrong type", "wrong argument"],
)
def test_whatever_a_stranger_does_is_an_answer(plugin, source, text):
    """The asking process continues."""
    # Only the hanging one should time out.
    answer = describe(plugin(source=source), {}, timeout=1.5 if "sleep" in source else 60.0)
    assert text in answer.broken


def test_another_installation_of_the_same_version_is_asked_again(plugin):
    """An old answer would, for example, not say that the view lies elsewhere now."""
    source = SOURCE.format(marker="{marker}")
    assert describe(plugin(source=source), {"path": "x"}).declared().view_version == 0
    entry = plugin(source=source.replace("options=Options,", "options=Options, view_version=2,"))
    assert describe(entry, {"path": "x"}).declared().view_version == 2
