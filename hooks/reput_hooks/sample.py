"""Sample: a message that a plugin's author wants the contract to be tried with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["Sample"]


class Sample(msgspec.Struct, frozen=True):
    """One message, as a producer would put it.

    Attributes:
        keys: what it can be queried by.
        delay_level: 1 to 18 has it lie in RocketMQ's schedule topic first, 0 does not.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = {}
    queue_id: int = 0
    delay_level: int = 0
