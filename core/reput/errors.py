"""Every error that reput raises on purpose, as one tree."""

from __future__ import annotations

from typing import Any, Self

__all__ = [
    "BrokerError",
    "ConfigError",
    "DamagedStore",
    "DispatcherError",
    "FollowError",
    "GroupUnreachable",
    "MessageIllegal",
    "NotAStore",
    "OffsetOutOfRange",
    "ReputError",
    "RequestRefused",
    "RingClosed",
    "RingError",
    "RingLapped",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "WaitTimeout",
]


class ReputError(Exception):
    """Base of all. The text is one sentence with ``name=value``; `advice` says what to do, also in a traceback."""

    advice: str = ""

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        if advice:
            self.advice = advice
        if self.advice:
            self.add_note(self.advice)


class ConfigError(ReputError, ValueError):
    """A setting, option or argument is unknown or has a wrong value. Correct the named value."""

    advice = "Correct the named value."


class StoreError(ReputError):
    """A store cannot do what was asked. The first `stored_count` messages of a batch were stored."""

    advice = "See `reput check STORE`."

    stored_count: int = 0


class NotAStore(StoreError):
    """The directory is absent, empty, or holds no commit log."""

    advice = "Name the directory that has commitlog/ in it."


class StoreLocked(StoreError):
    """Another process writes the store. Stop it first; reading works beside it."""

    advice = "Stop that process first, or connect to `reput serve STORE` from every process. Reading still works."


class StoreClosed(StoreError):
    """The store, client or consumer is closed, or this process is a forked child of the one that opened it."""

    advice = "Open the store again."


class StoreReadOnly(StoreError):
    """The store takes no messages: a force failed, it follows a master, or this user may not write it."""

    advice = "See `reput status STORE` for the reason."


class StoreBusy(StoreError):
    """An earlier put is stuck in the system's page cache, all buffers are full, or too many transactions are open.
    Nothing was stored; put again.
    """

    advice = "Put again a little later. If this persists, the disk is overloaded or failing."


class StoreFull(StoreError):
    """The disk has no space for the next append, or for a configuration file. Free some; nothing was stored."""

    advice = "Free space on the disk; nothing was stored."


class DamagedStore(StoreError):
    """Bytes of the log differ from what was written. See `reput check` and `reput repair`."""

    advice = "See `reput check STORE` for what is damaged."

    # Place of an invalid record: its commit-log offset, and its size if known.
    place: tuple[int, int | None] | None = None

    @classmethod
    def at(cls, commit_log_offset: int, record_size: int | None, text: str, advice: str = "") -> Self:
        """Return the error for a place of the log."""
        error = cls(text, advice)
        error.place = (commit_log_offset, record_size)
        return error


class MessageIllegal(StoreError, ValueError):
    """A message violates a limit of RocketMQ: topic, properties, body or record size. Nothing was stored."""

    advice = "Change the message; it was not stored."


class OffsetOutOfRange(StoreError, ValueError):
    """An offset is outside the range of the log or the queue."""

    advice = "See `reput status STORE` for the offsets that the log holds."


class FollowError(StoreError):
    """A store cannot follow its master: a gap, diverged logs, another master, damage. Nothing was appended."""

    advice = "See docs/replication.md for the ways out."


class RequestRefused(ReputError):
    """RocketMQ refuses this request of a consumer or administrator; `response_code` is its code for the reason."""

    def __init__(self, response_code: int, text: str, advice: str = "") -> None:
        super().__init__(text, advice or getattr(response_code, "advice", ""))
        self.response_code = response_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.response_code, *self.args), self.__dict__


class RingError(ReputError):
    """The dispatch ring cannot be used."""

    advice = "Open the store again; the log has everything."


class RingClosed(RingError):
    """This process has closed the ring."""


class RingLapped(RingError):
    """The writer overwrote frames before this reader read them; the commit log still has them."""


class DispatcherError(ReputError):
    """A dispatcher is not enabled, cannot be described, or does not answer."""

    advice = "See `reput plugin list` and `reput status STORE`."


class GroupUnreachable(DispatcherError):
    """A process group works on the store, or may do so, but cannot be reached from here."""

    advice = "Ask as the user who has the store open, or as root, on the same machine and in the same container."


class WaitTimeout(DispatcherError, TimeoutError):
    """A dispatcher's progress did not reach the asked offset in time."""

    advice = "See `reput status STORE` for the dispatcher's state and lag."


class BrokerError(ReputError):
    """A broker or name server cannot be reached, or refused a request."""

    advice = "Check that the address is right and that the server runs."
