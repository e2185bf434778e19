"""File runs: files that follow each other without a hole, as those of a queue or of the index.

They go from the ends of the run only: those before it the oldest first, those behind it the newest first. So whoever
is killed meanwhile leaves a run, too. Of one with a hole, RocketMQ would take what lies behind the hole for the end of
what is built, and never build what was in it.

Source: RocketMQ store, ConsumeQueue.putMessagePositionInfo and IndexService.buildIndex.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar

__all__ = ["removal_order"]

File = TypeVar("File")


def removal_order(found: Sequence[File], wanted: Container[File]) -> list[File]:
    """Return those of *found*, which ascend, that are not *wanted*, in the order in which they are to be removed."""
    first = next((number for number, file in enumerate(found) if file in wanted), 0)
    return [*found[:first], *(file for file in reversed(found[first:]) if file not in wanted)]
