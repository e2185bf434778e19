"""The process group: dispatchers in processes of their own, with real kills."""

from __future__ import annotations

import os
import signal

import pytest

TIMEOUT = 30.0

pytestmark = pytest.mark.processes


def test_what_is_put_is_dispatched_in_another_process(log, plugins, context, processes, saved):
    """Records come over the ring; progress comes back; at the end all is durable."""
    plugins.add("probe")
    log.put(20)
    running = processes(context("probe"))
    running.wait_for_state("probe", "RUNNING")
    for _ in range(10):
        end = log.put(3)
        running.group.wait_for("probe", end, TIMEOUT)
    row = running.row("probe")
    assert (row.lag_bytes, row.lag_messages, row.lapped_count, row.error) == (0, 0, 0, None)
    assert row.pid not in (None, os.getpid())
    assert row.counters == {"seen": 50}
    running.stop()
    assert saved("probe")["offsets"] == log.offsets


def test_a_killed_dispatcher_starts_again_and_catches_up(log, plugins, context, processes, saved):
    """kill -9, again and again: nothing is lost and nothing counted twice."""
    plugins.add("probe")
    running = processes(context("probe"))
    for number in range(3):
        running.group.wait_for("probe", log.put(10), TIMEOUT)
        victim = running.row("probe").pid
        os.kill(victim, signal.SIGKILL)
        running.group.wait_for("probe", log.put(10), TIMEOUT)
        running.wait_until(lambda victim=victim: running.row("probe").pid not in (None, victim))
        assert running.row("probe").restart_count == number + 1
    running.stop()
    assert saved("probe")["offsets"] == log.offsets
