"""Scratch directories of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.bench.scratch import scratch_directory


def interrupted_measurement(directory: Path) -> None:
    """Create a file, and fail in the middle."""
    with scratch_directory(directory) as scratch:
        (scratch / "store").mkdir()
        raise InterruptedError


def test_a_scratch_directory_is_removed_whole_whatever_becomes_of_the_measurement(tmp_path: Path) -> None:
    """Nothing is left of it, and nothing else is touched."""
    with pytest.raises(InterruptedError):
        interrupted_measurement(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_scratch_directories_of_a_time_are_apart(tmp_path: Path) -> None:
    """Each has a new name, because file systems choose the place by the name."""
    with scratch_directory(tmp_path) as one, scratch_directory(tmp_path) as other:
        assert one.parent != other.parent
        assert one.name != other.name


def test_a_file_system_without_such_places_is_no_reason_to_fail() -> None:
    """A file system in memory refuses the flag."""
    with scratch_directory(Path("/dev/shm")) as scratch:
        assert scratch.is_dir()
    assert not scratch.exists()
