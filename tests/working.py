"""For tests of workers: stores with short delays, handlers of both kinds, and workers that run in a thread."""

from __future__ import annotations

import asyncio
import functools
import threading

import reput

__all__ = ["QUICK_DELAYS", "Background", "as_coroutine", "as_function", "put"]

LIMIT_S = 60.0
QUICK_DELAYS = "0s " * 18


def as_function(function):
    """Return *function* itself."""
    return function


def as_coroutine(function):
    """Return a coroutine function that does the same."""

    @functools.wraps(function)
    async def handle(record):
        await asyncio.sleep(0)
        return function(record)

    return handle


def put(store, count, topic="orders", **fields):
    """Put messages whose bodies are their numbers."""
    return [store.put(reput.Message(topic, b"%d" % number, **fields)) for number in range(count)]


class Background:
    """A worker that runs in a thread, and what it returned or raised."""

    def __init__(self, worker):
        self.worker = worker
        self.result = None
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.result = self.worker.run()
        except Exception as error:
            self.error = error

    def end(self):
        """Stop it, and return its statistics."""
        self.worker.stop()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
