"""Shortage: a temporary lack, for example of disk space, for which a plugin raises `RetryLater`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from reput.errors import DispatcherError
from reput_hooks import RetryLater

__all__ = ["RETRY_MAX_S", "Shortage", "checked_delay"]

RETRY_MIN_S = 0.02
RETRY_MAX_S = 5.0


class Shortage:
    """The shortage of one dispatcher, and the pauses before its retries: each is twice as long as the one before.

    Args:
        show_error: shows a text as the dispatcher's error in the status; None: the error is over.

    Attributes:
        reason: what the plugin waits for; None: nothing.
    """

    def __init__(self, name: str, logger: logging.Logger, show_error: Callable[[str | None], None]) -> None:
        self.name = name
        self.logger = logger
        self.show_error = show_error
        self.reason: str | None = None
        self.delay_s = 0.0

    def pause(self, error: RetryLater) -> float:
        """Show what the plugin waits for, and return the seconds until the next attempt.

        Raises:
            DispatcherError: the plugin asked for a delay that is not a number of seconds.
        """
        if error.after is None:
            delay = self.delay_s = min(self.delay_s * 2, RETRY_MAX_S) or RETRY_MIN_S
        else:
            delay = checked_delay(self.name, error.after)
        reason = str(error) or "RetryLater was raised without a reason"
        if reason != self.reason:
            self.logger.warning("waiting until a shortage passes: reason=%s", reason)
        self.reason = reason
        self.show_error(reason)
        return delay

    def shorten_pauses(self) -> None:
        """Restart with the shortest pause: the plugin has made progress."""
        self.delay_s = 0.0

    def end(self) -> None:
        """End the shortage, if there is one."""
        if self.reason is not None:
            self.clear()
            self.show_error(None)

    def clear(self) -> None:
        """Forget the shortage without touching the status."""
        self.reason = None
        self.delay_s = 0.0


def checked_delay(name: str, seconds: object) -> float:
    """Return the delay that the plugin of dispatcher *name* requests.

    Raises:
        DispatcherError: it is not a finite number of seconds, at least 0.
    """
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf:
        return float(seconds)
    raise DispatcherError(
        f"RetryLater takes a nonnegative number of seconds: dispatcher={name} after={seconds!r:.100}",
        "Leave it out, and the host waits longer each time.",
    )
