"""File runs: files that follow each other without a hole, as those of a queue or of the index.

Files are removed only from the ends of the run: the oldest first at its begin, the newest first at its end. A process
that is killed meanwhile therefore leaves a run. In a run with a hole, RocketMQ would take the files behind the hole for
the end of what is built, and never build what was in the hole.

Source: RocketMQ store, ConsumeQueue.putMessagePositionInfo and IndexService.buildIndex.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar

__all__ = ["removal_order"]

File = TypeVar("File")


def removal_order(found: Sequence[File], wanted: Container[File]) -> list[File]:
    """Return the files of *found* (ascending) that are not *wanted*, in the order in which to remove them."""
    first = next((number for number, file in enumerate(found) if file in wanted), 0)
    return [*found[:first], *(file for file in reversed(found[first:]) if file not in wanted)]
