"""The figures of all measurements: those of `reput bench`, and those for developers only."""

from __future__ import annotations

from reput.bench.figures import FIGURES as USER_FIGURES
from reput.bench.figures import Figure, at_most

__all__ = ["FIGURES"]

FIGURES: dict[str, tuple[Figure, ...]] = {
    **USER_FIGURES,
    "flat": (
        at_most("put, 10,000 queues to 10", "queues.put.many_to_few", "times", 1.2),
        at_most("get, 10,000 queues to 10", "queues.get.many_to_few", "times", 1.2),
        at_most("put, 100 segments to 1", "segments.put.many_to_few", "times", 1.2),
        at_most("get, 100 segments to 1", "segments.get.many_to_few", "times", 1.2),
    ),
    "misbehaviour": (at_most("put p99 beside misbehaviour, more", "difference_percent_max", "%", 20),),
}
