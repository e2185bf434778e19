"""At a signal, a writing command ends between two messages, and leaves a closed store."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from command_line import REPUT
from reput.cli import main
from reput.cli.terminal.interrupts import Interrupted, Interrupts
from reput.process.owner.process_group import ProcessGroup

pytestmark = pytest.mark.processes

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
SMALL = ("--set", "mappedFileSizeCommitLog=65536", "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=400")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_send_that_reads_stdin_closes_the_store(tmp_path, number, code):
    """No `abort` file is left, the sent messages are stored, and the exit code is the signal's."""
    store = tmp_path / "store"
    command = [REPUT, "send", store, "orders", *SMALL, "--format", "json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert b'"queue_offset":0' in process.stdout.readline()
            assert (store / "abort").exists()
            process.send_signal(number)
            assert process.wait(timeout=60) == code
            assert process.stderr.read() == b""
        finally:
            process.kill()
    assert not (store / "abort").exists()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_at_work_waits_for_the_end_of_the_work(number, code):
    """It ends the next wait."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        assert interrupts.received == number
        with pytest.raises(Interrupted), interrupts.waiting():
            raise AssertionError("this is not reached")
    assert interrupts.exit_code == code


def test_one_signal_ends_the_wait_for_dispatchers_that_are_behind(tmp_path, monkeypatch, capsys):
    """They continue at the next opening. The summary is printed, and the exit code is the signal's."""

    def wait_long(group, timeout):
        group.kill()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise AssertionError("the signal did not end it")

    monkeypatch.setattr(ProcessGroup, "drain_and_stop", wait_long)
    assert main(["send", str(tmp_path / "store"), "orders", *SMALL, "--count", "3"]) == 143
    assert "3" in capsys.readouterr().out


def test_a_signal_before_the_end_does_not_cut_it_short():
    """It asked for this end; only another signal cuts it short."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        with interrupts.ending():
            pass


def test_a_second_signal_ends_it_anywhere():
    """Pressing Ctrl-C twice means not to wait."""
    with Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_as_they_were_behind_it():
    """Another command in the same process has its own."""
    before = [signal.getsignal(number) for number, _ in SIGNALS]
    with Interrupts() as interrupts, interrupts.waiting():
        pass
    assert [signal.getsignal(number) for number, _ in SIGNALS] == before
    assert interrupts.exit_code == 0
