"""in_thread: runs a blocking call of a coroutine twin in a thread of the event loop's executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["in_thread"]

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what *call* returns, while other tasks of the loop run."""
    # A program without tasks opens its store sooner without asyncio.
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)
