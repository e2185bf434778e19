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
    """No object of this process is exempt, as in a new worker. Afterwards all are, as `conftest.py` has it."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_a_worker_exempts_what_is_loaded_once(monkeypatch: pytest.MonkeyPatch):
    """After its first task; objects of later tasks are looked at."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(WORKER_MODULE, None))
    loaded: list[object] = []
    end_task()
    later: list[object] = []
    end_task()
    looked_at = set(map(id, gc.get_objects()))
    assert id(later) in looked_at
    assert id(loaded) not in looked_at


@pytest.mark.usefixtures("thawed")
def test_another_process_is_left_alone():
    """It reads the log beside work of its own."""
    end_task()
    assert gc.get_freeze_count() == 0
