"""RebuildPlan: the input of each task of a rebuild on Spark. Built: the result of a view's builder."""

from __future__ import annotations

import msgspec

from reput.settings import Settings

__all__ = ["Built", "RebuildPlan"]


class RebuildPlan(msgspec.Struct, frozen=True):
    """The views to build from the records in [begin, until) of the log, and their target."""

    store: str
    target: str
    begin: int
    until: int
    settings: Settings
    split_bytes: int
    # Topic to the commit-log offset of its last deletion: queues have no units of its records below that.
    deletions: dict[str, int]
    # The same for queues that RocketMQ deleted with their topic, by topic and queue id.
    recreated_at: dict[tuple[str, int], int] = {}


class Built(msgspec.Struct, frozen=True):
    """The result of a view's builder: the bytes of its cursor file; see `BuiltView` for the rest."""

    sealed_state: bytes
    records: int
    refused: list[tuple[int, str]]
