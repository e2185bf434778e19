"""Coroutine twins of blocking calls: the call runs in a thread of the event loop's executor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

__all__ = ["begin_in_thread", "in_thread", "iterated_in_thread", "opened_in_thread"]

P = ParamSpec("P")
R = TypeVar("R")


class Closable(Protocol):
    """The result of an opening call."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


def begin_in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Return a future for what *call* returns in a thread of the running loop's executor, with the task's context."""
    # A program without tasks opens its store sooner without asyncio.
    import asyncio
    import contextvars

    run = partial(contextvars.copy_context().run, call, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(None, run)


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of *call*. A cancelled task stops waiting; the call still begins and ends."""
    from asyncio import shield

    # `asyncio.to_thread` would cancel a call that waits for a thread of the executor.
    return await shield(begin_in_thread(call, *args, **kwargs))


async def opened_in_thread(opening: Callable[P, C], *args: P.args, **kwargs: P.kwargs) -> C:
    """Return the result of *opening*, which is closed if the task is cancelled meanwhile."""
    from asyncio import CancelledError, shield

    future = begin_in_thread(opening, *args, **kwargs)
    try:
        return await shield(future)
    except CancelledError:
        opened = await future
        await in_thread(opened.close)
        raise


async def iterated_in_thread(steps: Generator[R, None, None]) -> AsyncGenerator[R, None]:
    """Yield what *steps* yields. Each step runs in a thread; a cancelled task waits for the current one to end."""
    from asyncio import CancelledError, shield

    try:
        while True:
            # A future cannot raise StopIteration.
            future = begin_in_thread(lambda: [*islice(steps, 1)])
            try:
                found = await shield(future)
            except CancelledError:
                await future
                raise
            if not found:
                return
            yield found[0]
    finally:
        await in_thread(steps.close)
