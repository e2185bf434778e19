"""Actions that take a while: their progress, their outcome, and the audit log."""

from __future__ import annotations

import json
import threading

import pytest

from delivering import wait_until
from reput.console.audit_log import AuditLog
from reput.console.jobs import Jobs
from reput.errors import DispatcherError


def test_an_action_tells_how_far_it_is_and_how_it_ended(tmp_path):
    """Also one that fails; both stand in the audit log, with user and address."""
    jobs = Jobs(AuditLog(tmp_path / "log" / "audit.log"))
    go_on = threading.Event()

    def rebuild(progress):
        progress(30, 120)
        go_on.wait()
        return "swapped in"

    def fail(progress):
        raise DispatcherError("it does not run: dispatcher=index", "Start it.")

    running = jobs.begin("rebuild dispatcher=index", "ada", "10.0.0.7", rebuild)
    wait_until(lambda: running.percent == 25)
    assert running.state == "runs"
    assert running.progress == "30 of 120"
    go_on.set()
    wait_until(lambda: running.state == "done")
    failing = jobs.begin("pause dispatcher=index", "-", "127.0.0.1", fail)
    wait_until(lambda: failing.state == "failed")
    assert failing.outcome == "it does not run: dispatcher=index"
    assert [job.action.split()[0] for job in jobs.newest()] == ["pause", "rebuild"]
    wait_until(lambda: len((tmp_path / "log" / "audit.log").read_text().splitlines()) == 4)
    lines = [json.loads(line) for line in (tmp_path / "log" / "audit.log").read_text().splitlines()]
    assert [(line["user"], line["peer"], line["outcome"]) for line in lines] == [
        ("ada", "10.0.0.7", "begun"),
        ("ada", "10.0.0.7", "done: swapped in"),
        ("-", "127.0.0.1", "begun"),
        ("-", "127.0.0.1", "failed: it does not run: dispatcher=index"),
    ]


def test_an_action_that_runs_is_not_begun_a_second_time():
    """A double click on the button of a redrive would put each letter back twice."""
    jobs = Jobs(AuditLog(None))
    go_on = threading.Event()
    begun = []

    def redrive(progress):
        begun.append(1)
        go_on.wait()
        return "done"

    first = jobs.begin("redrive group=billing", "ada", "10.0.0.7", redrive)
    assert jobs.begin("redrive group=billing", "ada", "10.0.0.7", redrive) is first
    assert jobs.begin("redrive group=audit", "ada", "10.0.0.7", redrive) is not first
    go_on.set()
    wait_until(lambda: first.state == "done")
    assert jobs.begin("redrive group=billing", "ada", "10.0.0.7", redrive) is not first
    wait_until(lambda: len(begun) == 3)


def test_a_login_changes_no_byte_of_a_store(tmp_path):
    """The page and the program's log show it; a file that the operator names has it, too."""
    for keeps_logins, written in ((False, False), (True, True)):
        audit = AuditLog(tmp_path / "audit.log", keeps_logins=keeps_logins)
        audit.add_login("ada", "10.0.0.7", "done")
        assert [line.action for line in audit.shown] == ["login"]
        assert (tmp_path / "audit.log").exists() == written


def test_attempts_to_log_in_do_not_push_actions_off_the_page():
    """The page has the last of both, newest first."""
    audit = AuditLog(None)
    audit.add("ada", "10.0.0.7", "pause dispatcher=index", "begun")
    for _ in range(1000):
        audit.add_login("-", "10.0.0.9", "refused")
    audit.add("ada", "10.0.0.7", "resume dispatcher=index", "begun")
    actions = [line.action for line in audit.shown if line.action != "login"]
    assert actions == ["resume dispatcher=index", "pause dispatcher=index"]
    assert len(audit.shown) < 1000


def test_an_action_that_cannot_be_noted_is_not_begun(tmp_path):
    """An audit log that does not take the line would hide who did it."""
    (tmp_path / "log").write_text("a file")
    done = []
    with pytest.raises(OSError, match="log"):
        Jobs(AuditLog(tmp_path / "log" / "audit.log")).begin("pause", "-", "-", lambda progress: done.append(1) or "")
    assert done == []
