"""Bodies of admin requests as fastjson writes and reads them.

Some of RocketMQ's maps have message queues as keys. fastjson writes such a key as an object, which JSON does not allow:

    {"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":5}, … }}

mqadmin and the Java client accept no other form, so this module builds the text itself. Clients in other languages send
the key as text, or a list of objects in place of the map; all three forms are read.

Source: RocketMQ remoting, RemotingSerializable; fastjson 1.2, MapSerializer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from reput.errors import DamagedStore, RequestRefused
from reput.json_encoding import encode_json
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode
from reput.store.config.config_json import Parser

__all__ = ["json_response", "object_keyed", "parse_body", "queue_table"]


def json_response(body: object) -> RemotingCommand:
    """Return a successful response with a JSON body."""
    return RemotingCommand(ResponseCode.SUCCESS, body=encode_json(body))


def object_keyed(table: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """Return a map whose keys are objects as part of a body."""
    pairs = table.items() if isinstance(table, Mapping) else table
    return msgspec.Raw(b"{" + b",".join(encode_json(key) + b":" + encode_json(value) for key, value in pairs) + b"}")


def parse_body(data: bytes) -> Any:
    """Return the value of a body: dict, list, str, int, float, bool or None. Keys that are objects are `MessageQueue`.

    Raises:
        RequestRefused: SYSTEM_ERROR; the body is neither JSON nor fastjson's dialect.
    """
    try:
        parser = BodyParser(data.decode())
        return parser.value()
    except (DamagedStore, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: error={error}") from None


def queue_table(table: object, value_name: str) -> dict[MessageQueue, Any]:
    """Return a map whose keys are message queues, whichever of the three forms it was sent in.

    Args:
        value_name: in the form of a list, the field that holds the value.

    Raises:
        RequestRefused: SYSTEM_ERROR; *table* has none of the three forms.
    """
    if isinstance(table, list):
        return {queue_of(entry): entry.get(value_name) for entry in table}
    if not isinstance(table, dict):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"expected a map with message queues as keys: type={type(table)}"
        )
    return {
        key if isinstance(key, MessageQueue) else queue_of(parse_body(str(key).encode())): value
        for key, value in table.items()
    }


def queue_of(fields: object) -> MessageQueue:
    """Return the message queue that *fields* describe.

    Raises:
        RequestRefused: SYSTEM_ERROR; *fields* do not describe a message queue.
    """
    try:
        return msgspec.convert(fields, MessageQueue, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not a valid message queue: error={error}") from None


class BodyParser(Parser):
    """fastjson's dialect with message queues as keys."""

    def key(self) -> Any:
        if self.text[self.position : self.position + 1] == "{":
            return queue_of(self.mapping())
        return super().key()
