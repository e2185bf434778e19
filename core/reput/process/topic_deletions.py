"""TopicDeletions: which topics were deleted when, in ``reput/topic_deletions.jsonl``.

Views are told by a frame; whoever reads the log instead, late or to build a view again, finds the deletions here, at
their places. So a deletion is written here before its frame is published.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.process.json_lines import JsonLines

__all__ = ["TopicDeletion", "TopicDeletions"]


class TopicDeletion(msgspec.Struct, frozen=True):
    """*topic* was deleted when the log ended at *commit_log_offset*; *timestamp* in ms since 1970 UTC."""

    timestamp: int
    commit_log_offset: int
    topic: str


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
