"""The figures of all measurements: those of `reput bench`, and those for developers only."""

from __future__ import annotations

from reput.bench.figures import FIGURES as USER_FIGURES
from reput.bench.figures import Figure, at_least, at_most

__all__ = ["FIGURES"]


def client_figures(synchronous: int, promise: str) -> tuple[Figure, ...]:
    """Return the figures of a broker under its own Python client, for one promise of durability."""
    only = {"synchronous": float(synchronous)}
    return (
        at_least(f"{promise}: puts one after the other", "one_by_one.per_s", "1/s", only=only),
        at_least(f"{promise}: puts, 256 in flight", "aput.per_s", "1/s", only=only),
        at_least(f"{promise}: received and acknowledged", "received.per_s", "1/s", only=only),
        at_most(f"{promise}: end to end at 1,000 a second, p50", "end_to_end.p50_us", "µs", only=only),
        at_most(f"{promise}: end to end at 1,000 a second, p99", "end_to_end.p99_us", "µs", only=only),
        at_most(f"{promise}: anonymous memory", "memory.anonymous_bytes", "MiB", scale=1 << 20, only=only),
    )


FIGURES: dict[str, tuple[Figure, ...]] = {
    **USER_FIGURES,
    "flat": (
        at_most("put, 10,000 queues to 10", "queues.put.many_to_few", "times", 1.2),
        at_most("get, 10,000 queues to 10", "queues.get.many_to_few", "times", 1.2),
        at_most("put, 100 segments to 1", "segments.put.many_to_few", "times", 1.2),
        at_most("get, 100 segments to 1", "segments.get.many_to_few", "times", 1.2),
    ),
    "ring": (
        at_least("requests to one reader, 64 a frame", "to_one_reader.requests_per_second", "1/s", 2_000_000),
        at_most("publish, 16 readers to 1", "publish.running_16_to_1", "times", 1.05),
        at_most("publish, 16 paused readers to none", "publish.paused_16_to_alone", "times", 1.05),
        at_most("publish to a sleeping reader, p50", "wake.to_reader.p50_us", "µs"),
    ),
    "clients": (*client_figures(0, "broker"), *client_figures(1, "broker, to disk")),
    "misbehaviour": (at_most("put p99 beside misbehaviour, more", "difference_percent_max", "%", 20),),
}
