"""ReleaseService: the thread that publishes held records when a dispatcher asks for them.

A dispatcher that asks has nothing else to do, so it is served at once. While the writer keeps holding records, the
service also checks by itself: paused or dead dispatchers do not ask, and other processes read the log up to the
published offset.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from reput.process.frames.holding_publisher import HoldingPublisher
from reput.store.service.service_thread import ServiceThread
from reput.store.service.threads import Threads

__all__ = ["ReleaseService"]

# A record is held at most this long.
LOOK_MS = 20


class ReleaseService(ServiceThread):
    """One thread. *descriptor* is the ring's `release_descriptor`, an eventfd.

    *on_asked* is called whenever a dispatcher has written to it; the dispatcher may also wait for durable bytes.
    """

    def __init__(
        self,
        publisher: HoldingPublisher,
        put_lock: threading.Lock,
        descriptor: int,
        threads: Threads,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("reput-release", threads)
        self.publisher = publisher
        self.put_lock = put_lock
        self.descriptor = descriptor
        self.on_asked = on_asked
        self.start()

    def run(self) -> None:
        """Publish on request; while the publisher is watched, also check every `LOOK_MS`."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        timeout: int | None = None
        while not self.stopping:
            was_asked = bool(poll.poll(timeout))
            timeout = LOOK_MS if self.look(was_asked) else None

    def look(self, was_asked: bool) -> bool:
        """Publish held records; return whether to check again without a request."""
        if was_asked:
            os.eventfd_read(self.descriptor)
            self.on_asked()
        with self.put_lock:
            if self.publisher.release() or was_asked:
                return True
            self.publisher.held.is_watched = False
            return False

    def wakeup(self) -> None:
        """Make the thread check at once."""
        os.eventfd_write(self.descriptor, 1)

    def end_waits(self, reason: str) -> None:
        """Publish each record at once from now on: the thread has died."""
        with self.put_lock:
            self.publisher.hold_no_more()

    def stop(self) -> None:
        """End the thread, and publish held records. The caller puts nothing any more."""
        try:
            super().stop()
        finally:
            # Also after Ctrl-C: there is no second close.
            with self.put_lock:
                self.publisher.release()
