"""What was put while the clock was behind the log waits for its delay."""

from __future__ import annotations

from reput.consume.delivery.elapsed_delays import PART, ElapsedDelays


def test_messages_of_one_moment_wait_as_long_as_the_last_of_them():
    """None of them is delivered early, and memory does not grow with their number."""
    delays = ElapsedDelays(5)
    for number in range(1000):
        delays.note(6 + number, 10 * number, 64_000)
    assert len(delays.stretches) <= 1000 * 10 // (64_000 // PART) + 1
    assert delays.left(5, 0) == 64_000 + 1000
    assert delays.left(1004, 9990) == 64_000
    assert delays.left(1004, 80_000) == 0


def test_messages_that_were_put_before_or_after_are_unknown():
    """Their deliver times tell when they are due."""
    delays = ElapsedDelays(5)
    delays.note(6, 0, 1000)
    delays.end = 9
    delays.note(10, 0, 1000)
    assert [delays.left(queue_offset, 0) for queue_offset in range(4, 11)] == [None, 1000, None, None, None, 1000, None]
    delays.forget(6)
    assert len(delays.stretches) == 1
