"""TopicDeletions: which topics were deleted when, in ``reput/topic_deletions.jsonl``.

A frame in the ring tells the views of a deletion. A dispatcher that reads the log instead, because it is late or
rebuilds its view, finds the deletions here, each at its place. So a deletion is written here before its frame is
published.

The records of a deleted topic stay in the log until retention removes them. Behind a deletion, queue offsets of a topic
of the same name begin with 0 again, as in RocketMQ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from reput.store.disk.files import Files
from reput.store.disk.json_lines import JsonLines, seal_line

__all__ = ["LastDeletions", "TopicDeletion", "TopicDeletions", "last_deletions", "move_deletion"]


class TopicDeletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*topic* was deleted when the log ended at *commit_log_offset*; *timestamp* in ms since 1970 UTC."""

    timestamp: int
    commit_log_offset: int
    topic: str

    def concerns(self, topic: str, queue_id: int) -> bool:
        """Tell whether the queue begins anew."""
        return self.topic == topic


class TopicDeletions:
    """The deletions of one store, in the order in which they happened."""

    def __init__(self, store_directory: Path) -> None:
        self.lines = JsonLines(store_directory / "reput" / "topic_deletions.jsonl", TopicDeletion)

    def add(self, deletion: TopicDeletion) -> None:
        """Keep *deletion*, durably."""
        self.lines.append(deletion)

    def following(self, commit_log_offset: int) -> list[TopicDeletion]:
        """Return those at or behind *commit_log_offset*."""
        return [deletion for deletion in self.lines.read() if deletion.commit_log_offset >= commit_log_offset]

    def move_before(self, commit_log_offset: int, files: Files) -> None:
        """Move deletions behind *commit_log_offset* to it: the log was cut there and continues with other records.

        Otherwise the deletions would affect records that were put after them.
        """
        kept = list(self.lines.read())
        moved = [move_deletion(deletion, commit_log_offset) for deletion in kept]
        if moved != kept:
            files.replace(self.lines.path, b"".join([seal_line(deletion) for deletion in moved]))


class LastDeletions:
    """Where each topic of one store was deleted last, for readers beside its writer. Each call looks for a new file."""

    def __init__(self, store_directory: Path) -> None:
        self.deletions = TopicDeletions(store_directory)
        self.stamp: tuple[int, int, int] | None = None
        self.known: Mapping[str, int] = {}

    def __call__(self) -> Mapping[str, int]:
        """Return topic → commit-log offset.

        Raises:
            DamagedStore: a line of the file is not a deletion.
        """
        try:
            found = os.stat(self.deletions.lines.path)
        except FileNotFoundError:
            return {}
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self.stamp:
            self.known = last_deletions(self.deletions.following(0))
            self.stamp = stamp
        return self.known


def move_deletion(deletion: TopicDeletion, commit_log_offset: int) -> TopicDeletion:
    """Return *deletion*, at *commit_log_offset* if it lies behind."""
    if deletion.commit_log_offset <= commit_log_offset:
        return deletion
    return msgspec.structs.replace(deletion, commit_log_offset=commit_log_offset)


def last_deletions(deletions: Sequence[TopicDeletion]) -> dict[str, int]:
    """Return of each topic where it was deleted last."""
    return {deletion.topic: deletion.commit_log_offset for deletion in deletions}
