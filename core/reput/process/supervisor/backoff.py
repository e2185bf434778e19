"""Backoff: how long to wait before a dispatcher restarts, and when to give up."""

from __future__ import annotations

import random
from collections.abc import Callable

from reput.settings import Settings

__all__ = ["ESSENTIAL", "Backoff"]

# Consumers read the views of these dispatchers, so they restart without limit.
ESSENTIAL = frozenset({"consume_queue"})
# The first restart comes within this time, whatever the settings say; an essential dispatcher restarts at once.
FIRST_MAX_S = 0.1


class Backoff:
    """Exponential backoff with jitter. Progress of the dispatcher resets the failure count."""

    def __init__(
        self, name: str, settings: Settings, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self.essential = name in ESSENTIAL
        self.pause_min_s = settings.dispatcher_backoff_min / 1000
        self.pause_max_s = settings.dispatcher_backoff_max / 1000
        self.restart_count_max = settings.dispatcher_restart_count_max
        self.uniform = uniform
        self.failure_count = 0
        self.progress_max = -1

    def failed(self, progress: int | None) -> float | None:
        """Record a failure at *progress*; return the seconds to wait, None: give up."""
        if progress is not None and progress > self.progress_max:
            self.failure_count = 0
            self.progress_max = progress
        self.failure_count += 1
        if self.failure_count > self.restart_count_max and not self.essential:
            return None
        # Beyond 2**30 the maximum applies anyway.
        pause: float = min(self.pause_min_s * 2.0 ** min(self.failure_count - 1, 30), self.pause_max_s)
        if self.failure_count == 1 and self.essential:
            return 0.0
        pause *= self.uniform(0.5, 1.0)
        return min(pause, FIRST_MAX_S) if self.failure_count == 1 else pause

    def forgive(self) -> None:
        """Reset the failure count: an operator has started the dispatcher."""
        self.failure_count = 0
