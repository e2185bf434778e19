"""Handlers: what a worker calls with each message; functions, coroutine functions, and what is neither."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from reput.errors import ConfigError
from reput_hooks import Record

__all__ = [
    "Handler",
    "call_coroutine",
    "check_handler",
    "check_result",
    "describe_error",
    "end_forked_child",
    "is_coroutine_function",
]

Handler: TypeAlias = Callable[[Record], Awaitable[object]] | Callable[[Record], object]

logger = logging.getLogger("reput.worker")


def check_handler(handler: object) -> None:
    """Refuse what could not handle a message.

    Raises:
        ConfigError: it is not callable, it takes no message, or a call of it would only make a generator.
    """
    if not callable(handler):
        raise ConfigError(f"the handler is not callable: handler={handler!r}", "Give a function or coroutine function.")
    bare = bare_function(handler)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise ConfigError(f"the handler is a generator function: handler={handler!r}", "Write it without `yield`.")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        # Some functions written in C do not tell.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            f"the handler does not take one message: handler={handler!r} signature={signature}",
            "Write it as a function of one argument.",
        ) from None


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Tell whether a call of *handler* returns a coroutine."""
    return inspect.iscoroutinefunction(bare_function(handler))


def bare_function(handler: Callable[..., object]) -> object:
    """Return the function that a call of *handler* runs: of a partial its function, of an object its `__call__`."""
    bare: Any = handler
    while isinstance(bare, functools.partial):
        bare = bare.func
    if inspect.isroutine(bare) or inspect.isclass(bare):
        return bare
    return bare.__call__


def check_result(handler: object, result: object) -> None:
    """Refuse a result that shows that the handler's work has not begun, as that of ``lambda record: handle(record)``.

    Raises:
        ConfigError: it is a coroutine, another awaitable, or a generator, which nothing runs.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        if asyncio.isfuture(result):
            # It runs already.
            return
        if inspect.iscoroutine(result):
            # Python would warn that nothing has awaited it.
            result.close()
        raise ConfigError(
            f"the handler returned work that has not begun: handler={handler!r} result={result!r}",
            "Give the coroutine function itself, or await inside of it. The message was not acknowledged.",
        )


async def call_coroutine(handler: Any, record: Record) -> object:
    """Run a coroutine function as a handler."""
    pid = os.getpid()
    try:
        return await handler(record)
    except SystemExit as error:
        # As in a thread, it ends a run of the handler, not the program.
        raise RuntimeError(f"the handler called for the program's end: error={error!r}") from error
    finally:
        end_forked_child(pid)


def end_forked_child(pid: int) -> None:
    """End this process if it is a forked child that has come out of the handler: it must not go on as the worker."""
    if os.getpid() != pid:
        logger.error("a handler has forked, and its child process came back: the child ends: pid=%d", os.getpid())
        os._exit(1)


def describe_error(error: BaseException) -> str:
    """Return the text of an exception for the log, also if its own code for that fails."""
    try:
        return repr(error)
    except Exception as failure:
        return f"{type(error).__name__} without a text ({type(failure).__name__})"
