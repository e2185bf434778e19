"""The changes that are found when a configuration is read again."""

from __future__ import annotations

import pytest

from reput.errors import ConfigError
from reput.process.control.configuration import Configuration
from reput.settings import load_settings


@pytest.fixture
def file(tmp_path):
    """A configuration file."""
    return tmp_path / "reput.toml"


def configuration(file, text, **settings):
    file.write_text(text)
    return Configuration(load_settings(file, **settings).settings, lambda: load_settings(file, **settings).settings)


def test_dispatchers_and_their_options_are_taken_up(file):
    """Added and removed dispatchers, and changed options; each change is reported once."""
    found = configuration(file, '[dispatchers]\nenabled = ["a", "b"]\n[dispatchers.b]\nlimit = 1\n')
    file.write_text('[dispatchers]\nenabled = ["b", "c"]\n[dispatchers.b]\nlimit = 2\n[dispatchers.c]\nname = "x"\n')
    change = found.reread()
    assert (change.added, change.removed) == (("c",), ("a",))
    assert change.options == {"b": {"limit": 2}, "c": {"name": "x"}}
    assert change.waiting == ()
    again = found.reread()
    assert (again.added, again.removed, again.options) == ((), (), {})


def test_a_dispatcher_that_is_added_comes_with_its_plugin_and_one_that_runs_keeps_its_own(file):
    """Another plugin could not use the existing view."""
    found = configuration(file, '[dispatchers]\nenabled = ["a"]\n[dispatchers.a]\nplugin = "sink"\n')
    file.write_text(
        '[dispatchers]\nenabled = ["a", "b"]\n[dispatchers.a]\nplugin = "other"\n[dispatchers.b]\nplugin = "sink"\n'
    )
    change = found.reread()
    assert (change.added, change.plugins["b"], change.options) == (("b",), "sink", {"b": {}})
    assert change.waiting == ("dispatchers.a.plugin",)


def test_other_settings_wait_for_the_next_opening(file):
    """They are named."""
    found = configuration(file, "flush_interval_commit_log = 100\n")
    file.write_text("flush_interval_commit_log = 200\n")
    assert found.reread().waiting == ("flush_interval_commit_log",)


def test_what_the_program_says_wins_over_the_file(file):
    """Like at the opening."""
    found = configuration(file, "", dispatchers=("a",))
    file.write_text('dispatchers = ["b"]\n')
    assert found.reread().added == ()


def test_a_wrong_file_changes_nothing(file):
    """The next valid file is compared with the current settings."""
    found = configuration(file, 'dispatchers = ["a"]\n')
    file.write_text('dispatchers = "a b c"\nnonsense = 1\n')
    with pytest.raises(ConfigError):
        found.reread()
    file.write_text('dispatchers = ["a", "b"]\n')
    assert found.reread().added == ("b",)
