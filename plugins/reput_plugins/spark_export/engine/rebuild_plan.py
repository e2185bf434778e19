"""RebuildPlan: what each task of a rebuild on Spark is told; Built: what the builder of a view tells."""

from __future__ import annotations

import msgspec

from reput.settings import Settings

__all__ = ["Built", "RebuildPlan"]


class RebuildPlan(msgspec.Struct, frozen=True):
    """What is built from the records in [begin, until) of the log, and where."""

    store: str
    target: str
    begin: int
    until: int
    settings: Settings
    split_bytes: int
    # Topic to the commit-log offset of its last deletion: queues have no unit of its records below.
    deletions: dict[str, int]
    # The same of queues that RocketMQ deleted with their topic, by topic and queue id.
    recreated_at: dict[tuple[str, int], int] = {}


class Built(msgspec.Struct, frozen=True):
    """What the builder of a view tells: what stands in its cursor file, as bytes; see `BuiltView` for the rest."""

    sealed_state: bytes
    records: int
    refused: list[tuple[int, str]]
