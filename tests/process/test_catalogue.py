"""Which dispatchers are installed."""

from __future__ import annotations

import json
import sys

import pytest

from process.probe_plugin import PluginFolder
from reput.errors import ConfigError
from reput.process.catalogue import installed_dispatchers, select_dispatchers


def test_dispatchers_are_found_by_metadata_without_import(plugins):
    """Name, distribution, version and origin, of code that would fail at once."""
    plugins.add("bad", source="raise SystemExit('imported')")
    entry = installed_dispatchers()["bad"]
    assert (entry.name, entry.distribution, entry.version, entry.editable) == ("bad", "probes", "1.0", False)
    assert entry.origin == str(plugins.folder)
    assert entry.module not in sys.modules


def test_the_built_in_ones_come_through_the_same_group():
    """They are found as everyone else's."""
    installed = installed_dispatchers()
    assert installed["consume_queue"].distribution == "reput"
    assert installed["index"].module == "reput_plugins.index"


def test_an_unknown_name_is_refused_with_the_nearest(plugins):
    """And the installed ones are named."""
    plugins.add("probe")
    with pytest.raises(ConfigError, match=r"dispatcher=prbe installed=.*probe") as caught:
        select_dispatchers(["prbe"])
    assert caught.value.advice == "Did you mean probe?"


def test_each_is_selected_once_in_the_given_order(plugins):
    """A name that is given twice runs once."""
    plugins.add("probe")
    assert [entry.name for entry in select_dispatchers(["probe", "index", "probe"])] == ["probe", "index"]


def test_one_name_from_two_distributions_is_refused(plugins, tmp_path, monkeypatch):
    """Nobody could say which of them would run."""
    plugins.add("probe")
    other = PluginFolder(tmp_path / "other")
    other.add("probe")
    (other.folder / "probes-1.0.dist-info").rename(other.folder / "rival-1.0.dist-info")
    (other.folder / "rival-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(other.folder))
    with pytest.raises(ConfigError, match=r"dispatcher=probe distributions=(probes,rival|rival,probes)"):
        installed_dispatchers()


def test_an_editable_installation_is_known_by_its_files_time(plugins):
    """Its code may change without its version changing."""
    plugins.add("probe")
    url = {"url": f"file://{plugins.folder}", "dir_info": {"editable": True}}
    (plugins.folder / "probes-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    entry = installed_dispatchers()["probe"]
    assert entry.editable
    assert entry.origin == f"file://{plugins.folder}"
    assert entry.module_changed_ns() == (plugins.folder / f"{entry.module}.py").stat().st_mtime_ns
