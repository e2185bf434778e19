"""Reactor: one place to wait for many descriptors. One thread."""

from __future__ import annotations

import select
from collections.abc import Callable

__all__ = ["Reactor"]


class Reactor:
    """Calls the handler of each descriptor that is ready."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Have *handler* called when *descriptor* can be read, or has ended."""
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, select.POLLIN)

    def want_room(self, descriptor: int, wanted: bool) -> None:
        """Have the handler of *descriptor*, if it is watched, called also when it can be written, or no longer."""
        if descriptor not in self.handlers:
            return
        self.poll.modify(descriptor, select.POLLIN | (select.POLLOUT if wanted else 0))

    def unwatch(self, descriptor: int) -> None:
        """Take back `watch`, which may not have been called."""
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def wait(self, timeout: float) -> int:
        """Wait at most *timeout* seconds until something is ready, and handle it; return the number of descriptors."""
        ready = self.poll.poll(max(0.0, timeout) * 1000)
        for descriptor, handler in [(descriptor, self.handlers[descriptor]) for descriptor, _ in ready]:
            # The handler of another one may have closed it, and its number may be that of something new already.
            if self.handlers.get(descriptor) is handler:
                handler()
        return len(ready)
