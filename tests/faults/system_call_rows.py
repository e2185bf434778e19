"""The fault matrix of real processes that are killed in their system calls; `killed_program` does it.

``REPUT_FAULT_CALLS=all`` kills at every call of every row, which takes minutes; otherwise a row takes 16, evenly
spread, or 12 if whole process groups are started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.killed_program import REFUSED
from faults.rows import row

__all__ = ["ALL_CALLS"]

ALL_CALLS = os.environ.get("REPUT_FAULT_CALLS") == "all"
KILL = "Process killed in its n-th system call that changes files"
TIMEOUT = 7200.0 if ALL_CALLS else 540.0
TESTS = Path(__file__).parents[1]


def killed(deed: str, kills_max: int) -> Callable[[Path], int]:
    """Return a row that kills *deed* in its calls."""

    def run(root: Path) -> int:
        arguments = [deed, str(root), str(1 << 30 if ALL_CALLS else kills_max)]
        program = [sys.executable, "-W", "error", "-m", "faults.killed_program", *arguments]
        ended = subprocess.run(program, cwd=TESTS, capture_output=True, text=True, timeout=TIMEOUT)
        if ended.returncode == REFUSED:
            pytest.skip(f"processes cannot be killed in their system calls: {ended.stderr.splitlines()[-1]}")
        assert ended.returncode == 0, ended.stderr
        # Surviving processes must tolerate the death of another one.
        assert "Traceback" not in ended.stderr, ended.stderr
        kills, calls = map(int, ended.stdout.split())
        print(f"deed={deed} kills={kills} calls={calls}")
        return kills

    run.__name__ = f"kill_in_call_{deed}"
    return run


for deed, place, afterwards in (
    ("append_roll_and_flush", "append, roll, flush, dispatch", "nothing that was appended is lost"),
    ("close", "close: views, checkpoint, snapshot", "the next opening finds the end by itself"),
    ("make", "creation of a new store", "the next opening makes it"),
    ("open", "opening", "the next opening continues from there"),
    ("recover", "recovery after a kill", "the next recovery finds the same end"),
    ("remove_segments", "removal of old segments", "log and views begin where the log does"),
    ("delete_topic", "deletion of a topic", "the topic is there, or it is gone, queues and all"),
):
    row(KILL, place, afterwards, pytest.mark.slow)(killed(deed, 16))

for deed, place, afterwards in (
    (
        "dispatch_in_processes",
        "writer, supervisor or dispatcher, while they append, dispatch and close",
        "the others continue",
    ),
    (
        "rebuild",
        "writer, supervisor or dispatcher, in a rebuild beside the running group",
        "the view is the old or the new one",
    ),
):
    row(KILL, place, afterwards, pytest.mark.slow, pytest.mark.processes)(killed(deed, 12))
