"""The usage of a disk, and its levels."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from reput.settings import Settings
from reput.store.disk.disk_space import DiskLevel, DiskLevels, DiskSpace


def answer(blocks: int, free: int, available: int) -> SimpleNamespace:
    return SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)


@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [
        (1000, 1000, 1000, 0),
        (1000, 500, 500, 50),
        (1000, 499, 499, 51),
        (1000, 999, 999, 1),
        (1000, 0, 0, 100),
        # Space reserved for the administrator counts neither as used nor as usable.
        (1000, 300, 100, 88),
    ],
)
def test_used_is_rounded_up_of_what_users_may_have(monkeypatch, tmp_path, blocks, free, available, percent):
    """As RocketMQ counts it, so that the same settings have the same meaning."""
    monkeypatch.setattr(os, "statvfs", lambda path: answer(blocks, free, available))
    assert DiskSpace().used_percent([tmp_path]) == percent


def test_the_fullest_disk_counts(monkeypatch, tmp_path):
    """Log and queues may be on two disks; a missing folder has none."""
    answers = {tmp_path / "a": answer(100, 90, 90), tmp_path / "b": answer(100, 20, 20)}

    def statvfs(path):
        if path not in answers:
            raise FileNotFoundError(path)
        return answers[path]

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert DiskSpace().used_percent([tmp_path / "a", tmp_path / "b", tmp_path / "absent"]) == 80
    assert DiskSpace().used_percent([tmp_path / "absent"]) == 0


def test_the_real_disk_answers(tmp_path):
    """The result is a percentage."""
    assert 0 < DiskSpace().used_percent([tmp_path]) <= 100


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (75, DiskLevel.FINE),
        (76, DiskLevel.SHORT),
        (85, DiskLevel.SHORT),
        (86, DiskLevel.FORCIBLE),
        (90, DiskLevel.FORCIBLE),
        (91, DiskLevel.WARNING),
    ],
)
def test_a_level_begins_above_its_number(used, level):
    """RocketMQ's defaults are 75, 85 and 90."""
    assert DiskLevels.of(Settings()).level(used) is level


def test_levels_stay_within_rocketmq_s_bounds():
    """No setting lets a disk fill up completely, or treats it as always too full."""
    highest = Settings(
        disk_max_used_space_ratio=100, disk_space_clean_forcibly_ratio=100, disk_space_warning_level_ratio=100
    )
    lowest = Settings(disk_max_used_space_ratio=0, disk_space_clean_forcibly_ratio=0, disk_space_warning_level_ratio=0)
    assert DiskLevels.of(highest) == DiskLevels(short=95, forcible=85, warning=90)
    assert DiskLevels.of(lowest) == DiskLevels(short=10, forcible=30, warning=35)
