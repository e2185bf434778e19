"""Numbers, sizes and times for people who look at many at once: short, and unknown ones as a hyphen."""

from __future__ import annotations

__all__ = ["short_count", "short_rate", "short_seconds", "short_size"]

UNKNOWN = "-"
COUNT_STEPS = (("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000))
SIZE_STEPS = (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40))
PLAIN_MAX = 9_999


def scaled(value: float, steps: tuple[tuple[str, int], ...], separator: str) -> str:
    """Return *value* with three digits or so and the largest unit that leaves it above 1."""
    unit, divisor = next(((unit, step) for unit, step in reversed(steps) if value >= step), steps[0])
    number = value / divisor
    text = f"{number:.0f}" if divisor == 1 or number >= 100 else f"{number:.1f}"
    return f"{text}{separator}{unit}" if unit else text


def short_count(value: float | None) -> str:
    """Return a count: ``9999``, ``12.3k``."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value <= PLAIN_MAX else scaled(value, COUNT_STEPS, "")


def short_rate(value: float | None) -> str:
    """Return a rate: ``0.5/s``, ``12.3k/s``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}/s" if 0 < value < 10 else f"{short_count(value)}/s"


def short_size(value: float | None) -> str:
    """Return a size: ``512 B``, ``1.5 GiB``."""
    return UNKNOWN if value is None else scaled(value, SIZE_STEPS, " ")


def short_seconds(value: float | None) -> str:
    """Return a stretch of time: ``0 s``, ``0.4 s``, ``3 min``, ``2.5 h``, ``4.0 d``."""
    if value is None:
        return UNKNOWN
    for unit, size in (("d", 86_400), ("h", 3_600)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    if value >= 60:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value == 0 or value >= 10 else f"{value:.1f} s"
