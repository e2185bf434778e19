"""The event loop behind a client's blocking methods."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from delivering import LIMIT_S
from reput.client.background_loop import BackgroundLoop


class InterruptedDeque(deque):
    """Raises once behind an append, as the handler of a signal may: Ctrl-C, or the time limit of a Celery task."""

    is_interrupted = False

    def append(self, item):
        super().append(item)
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt


def test_a_call_that_a_signal_interrupts_does_not_hold_up_later_ones():
    """Otherwise every later put of the process would wait for ever."""
    loop = BackgroundLoop()
    loop.calls = InterruptedDeque()
    called = [threading.Event(), threading.Event()]
    with pytest.raises(KeyboardInterrupt):
        loop.call(called[0].set)
    loop.call(called[1].set)
    assert all(event.wait(LIMIT_S) for event in called)
    loop.stop()
