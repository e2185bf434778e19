"""The contract is tried in a separate process, which a plugin may harm."""

from __future__ import annotations

import pytest

from process.contract.written_dispatchers import TOPIC_COUNT, counting
from process.probe_plugin import PluginFolder
from reput.errors import ConfigError
from reput.process.contract.suite import ContractProcess, run_contract
from reput.settings import load_settings

pytestmark = pytest.mark.processes

TIME_MAX = 3.0
CLAUSES = ["starts_with_nothing", "expires", "goes_on_where_it_stopped"]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return a function that tries some clauses with a dispatcher of the given source."""
    folder = PluginFolder(tmp_path / "plugins")
    monkeypatch.syspath_prepend(str(folder.folder))

    def run(source, clauses=CLAUSES, options=None, **given):
        folder.add("plugin", source=source)
        named = {f"dispatchers.plugin.{option}": value for option, value in (options or {}).items()}
        settings = load_settings(dispatchers=["plugin"], **named).settings
        return list(run_contract("plugin", settings, clauses, **given))

    return run


def test_every_clause_has_a_row(rows):
    """With its promise."""
    found = rows(TOPIC_COUNT)
    assert [(row.clause, row.state, row.reason) for row in found] == [(clause, "kept", None) for clause in CLAUSES]
    assert all(row.promise for row in found)


EXPIRE = "    def expire(self, at):\n        import os, time\n        {}\n\n    def flush(self)"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("os._exit(7)", "its process ended: exit_status=7"),
        ("os.kill(os.getpid(), 9)", "its process died: signal=9"),
        ("time.sleep(600)", "it did not end in 3 seconds"),
        ("raise SystemExit('enough')", "SystemExit: enough"),
        ("raise ZeroDivisionError", "ZeroDivisionError: "),
    ],
    ids=["exits", "is killed", "hangs", "leaves", "raises"],
)
def test_whatever_happens_breaks_one_clause(rows, monkeypatch, what, reason):
    """The other clauses are tried all the same."""
    receive, limits = ContractProcess.receive, iter((60.0, 3.0, 60.0))

    def receive_within(process, deadline):
        # Only the hanging clause should time out; a busy machine may need this long to start the others.
        return receive(process, deadline - TIME_MAX + next(limits))

    if "sleep" in what:
        monkeypatch.setattr(ContractProcess, "receive", receive_within)
    found = rows(counting(("    def flush(self)", EXPIRE.format(what))), time_max=TIME_MAX if "sleep" in what else 60.0)
    assert [row.state for row in found] == ["kept", "broken", "kept"]
    assert found[1].reason == reason


def test_the_traceback_comes_along(rows):
    """It names the plugin's line."""
    (row,) = rows(counting(("    def flush(self)", EXPIRE.format("1 / 0"))), ["expires"])
    assert row.reason == "ZeroDivisionError: division by zero"
    assert "in expire" in (row.traceback or "")


def test_a_wrong_option_is_refused_by_name(rows):
    """The request is wrong, not a clause."""
    with pytest.raises(ConfigError, match=r"dispatchers\.plugin\.limit"):
        rows(TOPIC_COUNT, options={"limit": 3})


def test_an_unknown_dispatcher_is_refused():
    """No process is started."""
    with pytest.raises(ConfigError, match="dispatcher=no_such"):
        list(run_contract("no_such", load_settings().settings, CLAUSES))
