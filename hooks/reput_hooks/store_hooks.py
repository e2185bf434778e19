"""The hooks of a store: what a program that writes may have done before and after each put.

They run in the writer's own process, on the thread that puts, and nothing isolates them: what they cost, every put
costs. Without any, a put pays nothing.
"""

from __future__ import annotations

from typing import Any

from reput_hooks.dispatcher import hookspec

__all__ = ["reput_after_put", "reput_before_put"]


@hookspec
def reput_before_put(message: Any) -> Any:
    """Look at *message*, a `reput.Message`, before it is stored; return the one to store in its place, or None.

    Called by whoever puts, without a lock; of a batch with each message, before the first of them is stored. Where
    several hooks stand, each is called with what the one before it has left. A replacement is checked as any message
    is; ``msgspec.structs.replace(message, …)`` makes one that differs in some fields. An exception refuses the put:
    nothing is stored, and the exception reaches whoever puts.

    Source: RocketMQ store, PutMessageHook.executeBeforePutMessage.
    """


@hookspec
def reput_after_put(message: Any, result: Any) -> None:
    """Look at what came of a put: *result* is the `reput.PutMessageResult` of *message*, the one stored.

    Called by whoever puts, once the message is in the log and before the disk is waited for; of a batch with each
    message, once all are there. The message is stored, so an exception is logged and goes no further.

    Source: RocketMQ broker, SendMessageHook.sendMessageAfter.
    """
