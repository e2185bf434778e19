"""BackgroundLoop: the event loop behind a client's blocking methods, in a daemon thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from reput.errors import ConfigError, StoreClosed

__all__ = ["BackgroundLoop", "ThreadOutcome", "run_in"]

Result = TypeVar("Result")


class BackgroundLoop:
    """Any thread may call it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: deque[Callable[[], None]] = deque()
        self.thread = threading.Thread(target=self.run_loop, name="reput-client", daemon=True)
        self.thread.start()

    def run_loop(self) -> None:
        """Run the loop until it is stopped. The thread's function."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self.loop.close()

    def call(self, function: Callable[[], None]) -> None:
        """Call *function* in the loop; one wake-up serves all calls that are waiting."""
        try:
            is_first = not self.calls
            self.calls.append(function)
            if is_first:
                self.loop.call_soon_threadsafe(self.run_calls)
        except BaseException:
            # A signal's handler has raised between the two. Without the wake-up, this and all later calls would wait.
            self.loop.call_soon_threadsafe(self.run_calls)
            raise

    def run_calls(self) -> None:
        """Make the calls that are waiting."""
        calls = self.calls
        while calls:
            calls.popleft()()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop, and return its result."""
        # The thread may have been started this moment, and the loop not run yet.
        return run_in(self.loop, coroutine, has_thread=True)

    def stop(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def run_in(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result], *, has_thread: bool = False
) -> Result:
    """Run a coroutine in a loop of another thread, or in one that does not run now, and return its result.

    Args:
        has_thread: a thread runs the loop, or begins to.

    Raises:
        ConfigError: *loop* is the loop of this thread, which would wait for itself.
        StoreClosed: the loop has ended.
    """
    try:
        is_own = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_own = False
    if is_own:
        coroutine.close()
        raise ConfigError(
            "a task called a blocking method of its own event loop", "Await the method with the prefix a."
        )
    if not (has_thread or loop.is_running() or loop.is_closed()):
        # Between two calls of `run_until_complete`. Nothing else would run the coroutine.
        return loop.run_until_complete(coroutine)
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise StoreClosed("the event loop has ended", "Connect again in the running loop.") from None
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class ThreadOutcome:
    """The result of a put, for a thread that waits while the loop sends the message, as a task waits for a future."""

    __slots__ = ("error", "lock", "result")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Whether the wait is over."""
        return not self.lock.locked()

    def set_result(self, result: Any) -> None:
        """Wake the thread with a result."""
        self.result = result
        self.lock.release()

    def set_exception(self, error: BaseException) -> None:
        """Wake the thread with an error."""
        self.error = error
        self.lock.release()

    def wait(self) -> Any:
        """Return the result, or raise the error."""
        with self.lock:
            if self.error is not None:
                raise self.error
            return self.result
