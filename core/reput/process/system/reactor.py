"""Reactor: waits for many descriptors in one place. One thread."""

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
        """Call *handler* when *descriptor* is readable or hung up."""
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, select.POLLIN)

    def want_room(self, descriptor: int, wanted: bool) -> None:
        """Start or stop calling the handler of *descriptor*, if it is watched, also when it is writable."""
        if descriptor not in self.handlers:
            return
        self.poll.modify(descriptor, select.POLLIN | (select.POLLOUT if wanted else 0))

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`; does nothing if *descriptor* is not watched."""
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def wait(self, timeout: float) -> int:
        """Wait at most *timeout* seconds until something is ready, and handle it; return the number of descriptors."""
        ready = self.poll.poll(max(0.0, timeout) * 1000)
        for descriptor, handler in [(descriptor, self.handlers[descriptor]) for descriptor, _ in ready]:
            # An earlier handler may have closed this descriptor, and its number may already be reused.
            if self.handlers.get(descriptor) is handler:
                handler()
        return len(ready)
