"""RingHeader: the writer's published state of the log and the ring, readable by every process."""

from __future__ import annotations

from reput.ring import layout
from reput.ring.layout import UNKNOWN
from reput.ring.word_access import Words

__all__ = ["RingHeader"]


class RingHeader:
    """The header's words by name. Each property is one load; two properties need not be consistent with each other.

    Commit-log offsets are bytes since the log's birth, None if the writer has not published them yet.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def ring_id(self) -> int:
        """Random number of this ring, new at each start of a writer."""
        return self._load(layout.RING_ID)

    @property
    def tail(self) -> int:
        """Position behind the last whole frame, bytes since the ring's birth."""
        return self._load(layout.TAIL)

    @property
    def appended(self) -> int | None:
        """Commit-log offset up to which records are readable."""
        word: int = self._words[layout.APPENDED]
        return None if word == UNKNOWN else word

    @property
    def ordinal(self) -> int | None:
        """Number of records since the log's birth, up to `appended`."""
        word: int = self._words[layout.ORDINAL]
        return None if word == UNKNOWN else word

    @property
    def durable(self) -> int | None:
        """Commit-log offset up to which the log is forced to disk."""
        word: int = self._words[layout.DURABLE]
        return None if word == UNKNOWN else word

    @property
    def commit_log_offset_min(self) -> int | None:
        """First byte of the log that still exists."""
        word: int = self._words[layout.COMMIT_LOG_OFFSET_MIN]
        return None if word == UNKNOWN else word

    @property
    def epoch(self) -> int | None:
        """Number of the log's history."""
        word: int = self._words[layout.EPOCH]
        return None if word == UNKNOWN else word

    @property
    def closed(self) -> bool:
        """Whether the writer has closed the ring."""
        return self._load(layout.CLOSED) != 0

    @property
    def backstop_count(self) -> int:
        """Back-stop wake-ups of waiters in the owner that found work; each one is a bug."""
        return self._load(layout.OWNER_BACKSTOP_COUNT)

    def _load(self, index: int) -> int:
        word: int = self._words[index]
        return word
