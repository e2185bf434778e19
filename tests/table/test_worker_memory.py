"""Spark's workers do not look for garbage in the modules that they have loaded; other processes are left alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

pytest.importorskip("pyarrow")

from reput.table.worker_memory import WORKER_MODULE, end_task


@pytest.fixture
def thawed() -> Iterator[None]:
    """Undo what a test does to the objects of this process."""
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_a_worker_exempts_what_is_loaded_once(monkeypatch: pytest.MonkeyPatch):
    """After its first task; garbage of later tasks is collected."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(WORKER_MODULE, None))
    end_task()
    exempt = gc.get_freeze_count()
    later = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    end_task()
    assert exempt > 10_000
    assert gc.get_freeze_count() <= exempt
    assert len(later) <= len(gc.get_objects()) < exempt


def test_another_process_is_left_alone():
    """It reads the log beside work of its own."""
    end_task()
    assert gc.get_freeze_count() == 0
