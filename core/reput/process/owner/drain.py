"""await_drain: waits until the dispatchers of a closing store have ended, logs the wait, and limits it.

    drain ──▶ caught up, flushed, ended
      │ time limit
      ▼
    hurry ──▶ flushed at their current positions, ended
      │ HURRY_S
      ▼
    the caller kills them

After the next opening, each dispatcher continues with the records that its view lacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from reput.process.control.dispatcher_row import DispatcherRow

__all__ = ["HURRY_S", "await_drain", "laggards"]

logger = logging.getLogger("reput.process")

# How often a close logs what it waits for.
TELL_S = 5.0
# Time for a last flush of dispatchers that were told to stop where they are.
HURRY_S = 2.0


def laggards(rows: Iterable[DispatcherRow]) -> str:
    """Return which dispatchers still run, and how many bytes of the log each one lags."""
    return ",".join(f"{row.name}:{row.lag_bytes}" for row in rows if row.state not in ("STOPPED", "PAUSED"))


def await_drain(
    join: Callable[[float], bool], hurry: Callable[[], object], waited_for: Callable[[], str], timeout: float
) -> bool:
    """Return True once the dispatchers have ended, False if they have not, even after being told to hurry.

    Args:
        join: waits this many seconds, and returns whether they have ended.
        hurry: tells them to stop where they are.
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
        "closing stops waiting for dispatchers, which continue at the next opening: bytes_behind=%s timeout_s=%g",
        waited_for(),
        timeout,
    )
    hurry()
    return join(HURRY_S)
