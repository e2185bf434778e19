"""Turn: collects work during one turn of an event loop, and does it once at the end of the turn.

    reads of all connections ──▶ jobs, such as storing what they sent ──▶ output of all connections

If nothing else is ready, the turn ends right after the read, so a single request is answered before the loop asks the
system for more. Otherwise, or if the loop does not tell what is ready, ending the turn is the loop's next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Protocol

__all__ = ["Turn"]


class HasOutput(Protocol):
    """An object with output to send, such as a connection."""

    def flush(self) -> None:
        """Send the output."""


class Turn:
    """The turns of the loop that the calling thread runs. Used in this thread only."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # The callbacks that asyncio's own loop still has to run in this turn; None: another loop, which hides them.
        self.ready: Sized | None = getattr(self.loop, "_ready", None)
        self.jobs: list[Callable[[], None]] = []
        self.senders: list[HasOutput] = []
        # Whether something, such as a read, ends the turn later.
        self.is_end_due = False
        self.is_reading = False

    def at_end(self, job: Callable[[], None]) -> None:
        """Call *job* at the end of the turn."""
        self.jobs.append(job)
        self.end_soon()

    def send_at_end(self, sender: HasOutput) -> None:
        """Let *sender* send at the end of the turn, after the jobs."""
        self.senders.append(sender)
        self.end_soon()

    def end_soon(self) -> None:
        """Let the loop end the turn, unless something else will end it."""
        if not (self.is_end_due or self.is_reading):
            self.is_end_due = True
            self.loop.call_soon(self.end)

    def begin_read(self) -> None:
        """Note that a connection's bytes are being handled; `end_read` follows."""
        self.is_reading = True

    def end_read(self) -> None:
        """End the turn now if nothing else is ready, or let the loop do so."""
        self.is_reading = False
        if self.jobs or self.senders:
            if self.ready is None or self.ready:
                self.end_soon()
            else:
                self.end()

    def end(self) -> None:
        """Run the jobs, then send."""
        jobs, self.jobs = self.jobs, []
        # Output that the jobs add is sent below.
        self.is_end_due = True
        try:
            for job in jobs:
                job()
        finally:
            self.is_end_due = False
            senders, self.senders = self.senders, []
            for sender in senders:
                sender.flush()
            if self.jobs or self.senders:
                self.end_soon()
