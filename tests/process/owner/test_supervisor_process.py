"""A supervisor that begins before its owner knows what to tell it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import reput
from process.owner.group_processes import await_end, is_gone
from reput.errors import StoreLocked
from reput.process.owner.supervisor_process import SupervisorProcess
from reput.store.message_store import MessageStore

pytestmark = pytest.mark.processes

PROGRAM = """
import os, signal
from reput.process.owner.supervisor_process import SupervisorProcess
supervisor = SupervisorProcess()
forked = os.fork()
if forked:
    print(supervisor.process.pid, forked, flush=True)
signal.pause()
"""


def test_the_supervisor_loads_its_modules_while_the_log_is_recovered(tmp_path, monkeypatch):
    """An opening is as long as the longer of the two, not as both."""
    began = []
    recover, begin = MessageStore.__init__, SupervisorProcess.__init__

    def noted_begin(self):
        began.append("supervisor")
        begin(self)

    def noted_recover(self, *arguments, **named):
        began.append("recovery")
        recover(self, *arguments, **named)

    monkeypatch.setattr(SupervisorProcess, "__init__", noted_begin)
    monkeypatch.setattr(MessageStore, "__init__", noted_recover)
    with reput.open(tmp_path / "store"):
        assert began == ["supervisor", "recovery"]


def test_a_refused_opening_leaves_no_supervisor(tmp_path, monkeypatch):
    """Neither a process nor a zombie."""
    begun = []
    begin = SupervisorProcess.__init__

    def noted_begin(self):
        begin(self)
        begun.append(self)

    with reput.open(tmp_path / "store", mode="inline"):
        monkeypatch.setattr(SupervisorProcess, "__init__", noted_begin)
        with pytest.raises(StoreLocked):
            reput.open(tmp_path / "store")
    (supervisor,) = begun
    assert supervisor.process.returncode is not None
    assert supervisor.channel.closed


def test_a_supervisor_without_setup_ends_with_its_owner():
    """Even while a process that the owner has forked keeps the owner's descriptors."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as owner:
        supervisor, forked = map(int, owner.stdout.readline().split())
        try:
            owner.kill()
            owner.wait()
            await_end(supervisor)
            assert not is_gone(forked)
        finally:
            os.kill(forked, signal.SIGKILL)
