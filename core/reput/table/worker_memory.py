"""The memory of a worker process of Spark, which reads one part of a log after the other, and lives on between them."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa

__all__ = ["WORKER_MODULE", "end_task", "is_worker"]

# The module that a worker's process was started with, before it was forked.
WORKER_MODULE = "pyspark.daemon"


def end_task() -> None:
    """Release memory that Arrow would keep with this process, and exempt what is loaded from garbage collections.

    Spark collects garbage after each task. In a process with pyspark, numpy and pyarrow this takes 60 ms, as long as
    decoding the tags of 100 MiB of the log, unless the objects of the loaded modules are left out.
    """
    pa.default_memory_pool().release_unused()
    if is_worker() and not gc.get_freeze_count():
        gc.freeze()


def is_worker() -> bool:
    """Return whether this process runs tasks for Spark, and nothing else."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == WORKER_MODULE
