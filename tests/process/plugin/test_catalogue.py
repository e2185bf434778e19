"""The installed dispatchers."""

from __future__ import annotations

import json
import os
import sys

import pytest

from process.probe_plugin import PluginFolder
from reput.errors import ConfigError
from reput.process.plugin.catalogue import installed_dispatchers, select_dispatchers
from reput.process.plugin.describe import describe


def test_dispatchers_are_found_by_metadata_without_import(plugins):
    """Name, distribution, version and origin, even of code that would fail on import."""
    plugins.add("bad", source="raise SystemExit('imported')")
    entry = installed_dispatchers()["bad"]
    assert (entry.name, entry.distribution, entry.version, entry.editable) == ("bad", "probes", "1.0", False)
    assert entry.origin == str(plugins.folder)
    assert entry.module not in sys.modules


def test_the_built_in_ones_come_through_the_same_group():
    """They are found like all others."""
    installed = installed_dispatchers()
    assert installed["consume_queue"].distribution == "reput"
    assert installed["index"].module == "reput_plugins.index"


def test_an_unknown_name_is_refused_with_the_nearest(plugins):
    """The error also lists the installed ones."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match=r"dispatcher=prbe installed=.*probe") as caught:
        select_dispatchers(["prbe"], {})
    assert caught.value.advice == "Did you mean probe?"


def test_each_is_selected_once_in_the_given_order(plugins):
    """A name that is given twice runs once."""
    plugins.add("probe")
    assert [entry.name for entry in select_dispatchers(["probe", "index", "probe"], {})] == ["probe", "index"]


def test_one_name_from_two_distributions_is_refused_where_it_is_to_run(plugins, tmp_path, monkeypatch):
    """It would be ambiguous; without using either, there is no error, and the list shows both."""
    plugins.add("probe")
    other = PluginFolder(tmp_path / "other")
    other.add("probe")
    (other.folder / "probes-1.0.dist-info").rename(other.folder / "rival-1.0.dist-info")
    (other.folder / "rival-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(other.folder))
    with pytest.raises(ConfigError, match="dispatcher=probe distributions=probes,rival"):
        select_dispatchers(["probe"], {})
    assert [entry.name for entry in select_dispatchers(["index"], {})] == ["index"]
    assert "distributions=probes,rival" in (describe(installed_dispatchers()["probe"], {}).broken or "")


@pytest.mark.parametrize("name", ["a/b", "..", "probe.emptying", "probe probe", "p" * 64])
def test_what_names_no_folder_is_no_dispatcher(plugins, name):
    """It names the view's folder, the table of options, and the files beside them."""
    plugins.add("probe")
    plugins.points[name] = plugins.points["probe"]
    plugins.install()
    with pytest.raises(ConfigError, match="63 letters, digits"):
        select_dispatchers([name], {})
    plugins.points["probe.2"] = plugins.points["probe"]
    plugins.install()
    assert [entry.name for entry in select_dispatchers(["probe.2"], {})] == ["probe.2"]


def test_an_editable_installation_is_known_by_its_files_time(plugins):
    """Its code may change without a new version."""
    plugins.add("probe")
    url = {"url": f"file://{plugins.folder}", "dir_info": {"editable": True}}
    (plugins.folder / "probes-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    entry = installed_dispatchers()["probe"]
    assert entry.editable
    assert entry.origin == f"file://{plugins.folder}"
    assert entry.module_changed_ns() == (plugins.folder / f"{entry.module}.py").stat().st_mtime_ns


def test_an_editable_package_is_known_by_all_of_its_sources(plugins):
    """Options may be declared in another module than the entry point's, even in a new one."""
    package = plugins.folder / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    plugins.points["packed"] = "pack.entry"
    plugins.install()
    entry = installed_dispatchers()["packed"]
    seen = [entry.module_changed_ns()]
    for number, name in enumerate(("entry.py", "options.py", "options.py"), 1):
        (package / name).touch()
        os.utime(package / name, ns=(0, seen[0] + number))
        seen.append(entry.module_changed_ns())
    assert seen == sorted(set(seen))


def test_several_dispatchers_are_made_of_one_plugin(plugins):
    """The configuration names them; each has its own plugin."""
    plugins.add("probe")
    first, second = select_dispatchers(["orders_hook", "probe"], {"orders_hook": "probe"})
    assert (first.name, first.plugin, first.module) == ("orders_hook", "probe", second.module)
    assert (second.name, second.plugin) == ("probe", "probe")


def test_a_section_with_a_wrong_plugin_or_an_installed_name_is_refused(plugins):
    """The error has both names."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match="dispatcher=orders_hook plugin=prbe installed=") as caught:
        select_dispatchers(["orders_hook"], {"orders_hook": "prbe"})
    assert caught.value.advice == "Did you mean probe?"
    with pytest.raises(
        ConfigError, match="the name belongs to another installed dispatcher: dispatcher=index plugin=probe"
    ):
        select_dispatchers(["index"], {"index": "probe"})
    with pytest.raises(ConfigError, match="up to 63 letters") as caught:
        select_dispatchers(["x" * 64], {"x" * 64: "probe"})
    assert caught.value.advice == "Give its section another name."
