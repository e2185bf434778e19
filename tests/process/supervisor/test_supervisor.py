"""The start of the supervisor; the tests of the group cover the rest."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from reput.process.control.channel import JsonChannel
from reput.process.control.control_messages import Setup
from reput.process.group.group_context import GroupContext
from reput.settings import Settings


@pytest.mark.slow
def test_an_owner_that_dies_while_the_supervisor_starts_is_no_error(tmp_path):
    """It ends silently: there is no process left to report to."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    ours, theirs = socket.socketpair()
    setup = Setup(
        context=GroupContext(tmp_path, "ab" * 16, Settings()),
        entries=[],
        path=[],
        started=0,
        again=False,
        lock_timeout=0.0,
    )
    with ours, theirs:
        JsonChannel(ours).send(setup)
        program = f"from reput.process.supervisor.supervisor import main; main(['{theirs.fileno()}', '{dead.pid}'])"
        ended = subprocess.run(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
