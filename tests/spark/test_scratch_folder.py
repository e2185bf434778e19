"""Scratch folders are removed with their owner, even if it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reput_plugins.spark_export.scratch_folder import YOUNG_SECONDS, scratch_folder


def make_older(path: Path) -> None:
    """Make a folder old enough to be checked."""
    os.utime(path, times=(0, path.stat().st_mtime - YOUNG_SECONDS - 1))


def test_what_a_killed_owner_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder in use stays, however old it is, and so does a new one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, tempfile; from reput_plugins.spark_export.scratch_folder import scratch_folder\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "with scratch_folder() as path: (path / 'spark.log').touch(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    with scratch_folder() as held:
        make_older(held)
        with scratch_folder():
            assert left.exists()
        make_older(left)
        with scratch_folder() as path:
            assert sorted(tmp_path.iterdir()) == sorted([held, path])
    assert list(tmp_path.iterdir()) == []
