"""The fault matrix of real disks that are full: small ones in memory, in private mount namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.rows import row
from faults.small_disk_program import REFUSED

__all__: list[str] = []

TIMEOUT = 120.0
TESTS = Path(__file__).parents[1]


def filled(act: str) -> Callable[[Path], int]:
    """Return a row that runs *act* on its own disk."""

    def run(root: Path) -> int:
        unshare = shutil.which("unshare")
        if unshare is None:
            pytest.skip("no disk can be mounted: there is no unshare (util-linux)")
        # Without root, mounting needs a user namespace, if the system allows them.
        spaces = ["-m"] if os.geteuid() == 0 else ["-rm"]
        program = [unshare, *spaces, sys.executable, "-W", "error", "-m", "faults.small_disk_program", act, str(root)]
        ended = subprocess.run(program, cwd=TESTS, capture_output=True, text=True, timeout=TIMEOUT)
        if ended.returncode == REFUSED or "unshare failed" in ended.stderr:
            pytest.skip(ended.stderr.strip())
        assert ended.returncode == 0, ended.stderr
        return 1

    run.__name__ = f"{act}_of_small_disk"
    return run


for act, place, afterwards in (
    (
        "fill_log",
        "a real one: room ahead of the log",
        "the put is refused, the reason given; once there is space, it continues",
    ),
    ("fill_views", "a real one: consume queues and index", "they wait, their status has the reason, puts continue"),
    ("fill_before_close", "a real one: close", "the reason is given, and the next opening has everything"),
    ("fill_before_open", "a real one: opening", "it is refused with the reason, and has everything once there is room"),
):
    row("Disk full", place, afterwards)(filled(act))
