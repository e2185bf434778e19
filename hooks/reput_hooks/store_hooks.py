"""The hooks of a store, which run before and after each put.

They run in the writer's process, on the thread that puts, without isolation: each put takes the time that they take. A
store without hooks pays nothing for them.
"""

from __future__ import annotations

from typing import Any

from reput_hooks.dispatcher import hookspec

__all__ = ["reput_after_put", "reput_before_put"]


@hookspec
def reput_before_put(message: Any) -> Any:
    """Look at *message*, a `reput.Message`, before it is stored; return the one to store in its place, or None.

    Called on the thread that puts, without a lock; for a batch with each message, before the first is stored. Each of
    several hooks gets the message that the one before it left. A replacement is checked like any other message;
    ``msgspec.structs.replace(message, …)`` makes one that differs in some fields. An exception refuses the put: nothing
    is stored, and the put raises the exception.

    Source: RocketMQ store, PutMessageHook.executeBeforePutMessage.
    """


@hookspec
def reput_after_put(message: Any, result: Any) -> None:
    """Look at the result of a put: *result* is the `reput.PutMessageResult` of *message*, the message that was stored.

    Called on the thread that puts, when the message is in the log and before the wait for the disk; for a batch with
    each message, when all are in the log. The message is stored: the host logs an exception, and the put succeeds.

    Source: RocketMQ broker, SendMessageHook.sendMessageAfter.
    """
