"""Sample: a message with which the contract is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["Sample"]


class Sample(msgspec.Struct, frozen=True):
    """One message, as a producer would put it.

    Attributes:
        keys: for queries by key.
        delay_level: 1 to 18 puts it into RocketMQ's schedule topic first; 0 does not delay it.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = {}
    queue_id: int = 0
    delay_level: int = 0
