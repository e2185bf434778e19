"""`reput plugin`: the installed plugins, and tests of their contract."""

from __future__ import annotations

import json
import subprocess

import pytest

from command_line import REPUT, run_reput
from process.contract.written_dispatchers import counting
from process.probe_plugin import PluginFolder
from reput.cli import main


def test_the_built_in_dispatchers_are_listed(capsys):
    """With their distribution, like all others."""
    main(["plugin", "list", "--format", "json"])
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {"consume_queue", "index"} <= rows.keys()
    assert rows["consume_queue"]["distribution"] == "reput"
    assert rows["consume_queue"]["module"] == "reput_plugins.consume_queue"


@pytest.mark.slow
def test_dispatchers_that_the_configuration_makes_of_a_plugin_are_listed_with_it(tmp_path, monkeypatch, capsys):
    """Under their own names, with their options; wrong options are reported."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("sink")
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "reput.toml"
    config.write_text('[dispatchers.hook]\nplugin = "sink"\nlimit = "many"\n')
    assert main(["plugin", "list", "--config", str(config), "--format", "json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (rows["hook"]["plugin"], rows["hook"]["state"], rows["hook"]["distribution"]) == (
        "sink",
        "OPTIONS",
        "probes",
    )
    assert "dispatchers.hook.limit" in rows["hook"]["error"]
    assert (rows["sink"]["plugin"], rows["sink"]["state"]) == ("sink", "READY")


@pytest.mark.slow
def test_what_a_dispatcher_takes_is_shown(tmp_path, monkeypatch, capsys):
    """With types, defaults and the schema, even while a required option is missing."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("sink", source=SINK)
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["plugin", "show", "sink"]) == 0
    text = capsys.readouterr().out
    assert "error=option of a dispatcher: dispatchers.sink.url reason=Object missing required field `url`" in text
    assert "after=" not in text
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["name", "type", "required", "default"],
        ["url", "str", "True", "-"],
        ["batch_size", "int", "False", "500"],
    ]
    assert main(["plugin", "show", "sink", "--set", "dispatchers.sink.url=x", "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["state"], row["view_elsewhere"], row["batch_record_count_max"]) == ("READY", True, 500)
    assert row["schema"]["$defs"]["Options"]["required"] == ["url"]
    assert main(["plugin", "show", "index"]) == 0
    assert "It has no options." in capsys.readouterr().out


SINK = """
import msgspec
from reput_hooks import *

class Options(msgspec.Struct):
    url: str
    batch_size: int = 500

@hookimpl
def reput_create_dispatcher(context):
    raise NotImplementedError

@hookimpl
def reput_describe_dispatcher():
    return DispatcherDescription(options=Options, batch_record_count_max=500, view_elsewhere=lambda options: True)
"""

CLAUSES = ["--clause", "starts_with_nothing", "--clause", "goes_on_where_it_stopped"]


@pytest.mark.processes
def test_a_dispatcher_is_held_to_its_contract():
    """A line per clause, and the number of kept ones."""
    done = run_reput("plugin", "test", "consume_queue", *CLAUSES)
    assert done.code == 0, done.stdout
    first, second, last = done.stdout.splitlines()
    assert first.startswith("kept            starts_with_nothing: With an empty folder")
    assert second.startswith("kept            goes_on_where_it_stopped: ")
    assert last == "2 kept"


@pytest.mark.processes
def test_a_broken_promise_is_exit_code_1(tmp_path, monkeypatch):
    """With the reason below it."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("forgetful", source=counting(("Counter(saved.count)", "Counter()")))
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = run_reput("plugin", "test", "forgetful", *CLAUSES, "--format", "json")
    assert done.code == 1
    assert [row["state"] for row in done.rows()] == ["kept", "broken"]
    assert "the view differs after pauses" in done.rows()[1]["reason"]


def test_an_unknown_clause_is_named_beside_the_known():
    """The known ones are listed."""
    done = run_reput("plugin", "test", "index", "--clause", "truncated")
    assert done.code == 2
    assert "clause=truncated" in done.stderr
    assert "truncates" in done.stderr


@pytest.mark.processes
def test_a_dispatcher_runs_in_the_command_s_own_process(tmp_path, monkeypatch):
    """An exception of the plugin is shown unchanged, with exit code 1."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("probe")
    monkeypatch.setenv("PYTHONPATH", str(folder.folder))
    assert run_reput("send", tmp_path / "store", "orders", "--count", "3").code == 0
    debug = [REPUT, "dispatcher", "debug", tmp_path / "store", "probe", "--format", "json"]
    done = subprocess.run(debug, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["batches"] == 1
    debug += ["--set", "dispatchers.probe.crash_at=0", "--pdb"]
    done = subprocess.run(debug, capture_output=True, text=True, timeout=60, input="p options.crash_at + 41\n")
    assert done.returncode == 1
    assert "ValueError: crash at 0" in done.stderr
    assert "(Pdb) 41" in done.stdout
