"""The basis of the other verb tests: `reput` behaves the same in the test's process as in a separate one."""

from __future__ import annotations

import logging
import os
import signal
import sys

import pytest

import reput
from command_line import run_reput, run_reput_process
from reput.cli import main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("check", "STORE", "--format", "json"), 0),
        (("dump", "STORE", "--body", "text"), 0),
        (("get", "STORE", "orders", 0, 1), 1),
        (("dump", "STORE", "--colour"), 2),
        (("status", "STORE/nothing"), 3),
        (("get", "--help"), 0),
    ],
)
def test_a_verb_ends_alike_in_both(arguments, code, tmp_path):
    """Exit code and both streams, byte for byte."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 16) as store:
        store.put(reput.Message("orders", "zwölf ☕".encode()))
    words = [str(argument).replace("STORE", str(tmp_path / "store")) for argument in arguments]
    here = run_reput(*words)
    assert here.code == code
    assert here == run_reput_process(*words)


def test_what_a_started_process_prints_is_kept(monkeypatch):
    """It inherits the descriptors, and reads stdin; afterwards they are restored."""
    before = [os.fstat(descriptor) for descriptor in range(3)], sys.stdin, sys.stdout, sys.stderr
    monkeypatch.setattr("command_line.main", lambda arguments: os.system("cat; echo wrong >&2") or 7)
    ended = run_reput(stdin="ü\n")
    assert (ended.code, ended.stdout, ended.stderr) == (7, "ü\n", "wrong\n")
    assert ([os.fstat(descriptor) for descriptor in range(3)], sys.stdin, sys.stdout, sys.stderr) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "leave"),
    [
        ("directory", lambda: os.chdir("/")),
        ("environment", lambda: os.environ.update(LEFT="1")),
        ("import_path", lambda: sys.path.append("/left")),
        ("signal_handlers", lambda: signal.signal(signal.SIGHUP, lambda *_: None)),
        ("log_handlers", lambda: logging.getLogger("reput").addHandler(logging.NullHandler())),
        ("log_levels", lambda: logging.getLogger("reput").setLevel(logging.ERROR)),
    ],
)
def test_a_verb_that_changes_the_process_fails_its_test(changed, leave, monkeypatch, tmp_path):
    """The next one would run in a changed process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFT", "0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(logging.getLogger("reput"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("reput"), "level", logging.NOTSET)
    hang_up = signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr("command_line.main", lambda arguments: leave() and main(arguments))
    try:
        with pytest.raises(AssertionError, match=rf"changed the process: \['{changed}'\]"):
            run_reput("--version")
    finally:
        signal.signal(signal.SIGHUP, hang_up)
