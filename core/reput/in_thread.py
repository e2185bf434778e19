"""Coroutine twins of blocking calls: the call runs in a thread of the event loop's executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

__all__ = ["in_thread", "opened_in_thread"]

P = ParamSpec("P")
R = TypeVar("R")


class Closable(Protocol):
    """The result of an opening call."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of *call*. A cancelled task stops waiting; the call still ends."""
    # A program without tasks opens its store sooner without asyncio.
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)


async def opened_in_thread(opening: Callable[P, C], *args: P.args, **kwargs: P.kwargs) -> C:
    """Return the result of *opening*, which is closed if the task is cancelled meanwhile."""
    import asyncio

    task = asyncio.ensure_future(asyncio.to_thread(opening, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        opened = await task
        await asyncio.to_thread(opened.close)
        raise
