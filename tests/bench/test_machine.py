"""Measurements of processes that may end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

from reput.bench.machine import group_memory


def test_a_process_that_has_ended_has_no_memory():
    """Neither as a zombie nor later; the other processes still count."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert group_memory([process.pid])["total_bytes"] == 0
        assert group_memory([process.pid, os.getpid()])["anonymous_bytes"] > 0
    assert group_memory([process.pid])["total_bytes"] == 0
