"""await_drain: wait until the dispatchers of a closing store have ended, say what is waited for, and bound the wait.

    drain ──▶ caught up, flushed, ended
      │ time limit
      ▼
    hurry ──▶ flushed where they are, ended
      │ HURRY_S
      ▼
    the caller kills them

Whatever a view has not taken in then, its dispatcher takes in after the next opening.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from reput.process.control.dispatcher_row import DispatcherRow

__all__ = ["HURRY_S", "await_drain", "laggards"]

logger = logging.getLogger("reput.process")

# How often a close says what it waits for.
TELL_S = 5.0
# How long dispatchers that were told to end where they are may take for a last flush.
HURRY_S = 2.0


def laggards(rows: Iterable[DispatcherRow]) -> str:
    """Return which dispatchers still run, and how many bytes of the log each has to take in."""
    return ",".join(f"{row.name}:{row.lag_bytes}" for row in rows if row.state not in ("STOPPED", "PAUSED"))


def await_drain(
    join: Callable[[float], bool], hurry: Callable[[], object], waited_for: Callable[[], str], timeout: float
) -> bool:
    """Return True once the dispatchers have ended, False if they have not, although they were told to hurry.

    Args:
        join: waits for so many seconds, and tells whether they have ended.
        hurry: tells them to end where they are.
        waited_for: names those that still run.
        timeout: seconds for catching up.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < timeout:
        if join(min(TELL_S, timeout - waited)):
            return True
        if time.monotonic() - began < timeout:
            logger.warning(
                "closing waits for dispatchers: bytes_behind=%s waited_s=%.0f timeout_s=%g",
                waited_for(),
                time.monotonic() - began,
                timeout,
            )
    if join(0.0):
        return True
    logger.warning(
        "closing waits no longer for dispatchers, which go on at the next opening: bytes_behind=%s timeout_s=%g",
        waited_for(),
        timeout,
    )
    hurry()
    return join(HURRY_S)
