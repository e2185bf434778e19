"""Interrupts: signals that end a command which writes, between two messages and never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["Interrupted", "Interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal came while the command waited: for its input, for the time, or for the store's end."""


class Interrupts:
    """In force as a context, in the main thread.

    A signal is kept until `waiting`, which it ends with `Interrupted`; what is at work goes on to its end. A second one
    ends the command wherever it is.

    Attributes:
        received: the first signal, None before it.
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
        """What a shell calls the end by a signal; 0 without one."""
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
        """Let a signal end what is done in this context.

        Raises:
            Interrupted: one has come, before or now.
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
        """Let a signal cut short what is done in this context. One that came before has asked for no more than this.

        Raises:
            Interrupted: one has come now.
        """
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False
