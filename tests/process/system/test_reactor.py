"""One thread waits for many descriptors."""

from __future__ import annotations

import os

from reput.process.system.reactor import Reactor


def test_a_number_that_is_used_again_is_not_taken_for_the_old_one():
    """Of two ready descriptors, the first handler closes the second and opens another, which gets the same number."""
    reactor = Reactor()
    pipes = [os.pipe(), os.pipe()]
    called = []

    def replace(number):
        other, _ = pipes[1 - number]
        reactor.unwatch(other)
        os.close(other)
        reading, writing = os.pipe()
        assert reading == other
        os.close(pipes[1 - number][1])
        pipes[1 - number] = (reading, writing)
        reactor.watch(reading, lambda: called.append("new"))
        called.append("old")

    for number, (reading, writing) in enumerate(pipes):
        reactor.watch(reading, lambda number=number: replace(number))
        os.write(writing, b"x")
    reactor.wait(0.0)
    assert called == ["old"]
    for reading, writing in pipes:
        os.close(reading)
        os.close(writing)
