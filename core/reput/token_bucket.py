"""TokenBucket: a rate that may be overdrawn once, and is then made up for."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Holds one second's worth.

    Attributes:
        level: how much may be taken; who takes more leaves it below 0.
    """

    __slots__ = ("at", "level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        """*rate*: how much a second; *now*: seconds of the clock that the caller uses."""
        self.rate = rate
        self.level = float(rate)
        self.at = now

    def wait(self, now: float) -> float:
        """Return the seconds until something may be taken, 0.0 if that is now."""
        self.level = min(float(self.rate), self.level + (now - self.at) * self.rate)
        self.at = now
        return 0.0 if self.level > 0 else (1.0 - self.level) / self.rate

    def is_full(self, now: float) -> bool:
        """Return whether nothing was taken for a second or so."""
        return self.wait(now) == 0.0 and self.level >= self.rate
