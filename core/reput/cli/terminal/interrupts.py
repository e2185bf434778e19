"""Interrupts: signals end a writing command between two messages, never within one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["Interrupted", "Interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal arrived while the command waited for its input, for the time, or for the store to close."""


class Interrupts:
    """A context for the main thread that defers signals.

    A signal is deferred until the next `waiting` block, which it ends with `Interrupted`; work outside such a block
    completes. A second signal ends the command wherever it is.

    Attributes:
        received: the first signal, None before that.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_waiting = False

    def __enter__(self) -> Interrupts:
        self.before = {number: signal.signal(number, self.receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The exit code of a shell for the signal; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        if self.is_waiting:
            raise Interrupted

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let a signal end the work in this context.

        Raises:
            Interrupted: a signal arrives now, or arrived before.
        """
        self.is_waiting = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self.is_waiting = False

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Let a new signal cut short the work in this context; an earlier signal only asked for this end.

        Raises:
            Interrupted: a signal arrives now.
        """
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False
