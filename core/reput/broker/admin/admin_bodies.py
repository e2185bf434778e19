"""Bodies of admin requests as fastjson writes and reads them.

RocketMQ has maps whose keys are message queues. fastjson writes such a key as a JSON object, which is no JSON:

    {"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":5}, … }}

mqadmin and the Java client take no other form, so the text is put together by hand. Peers in other languages send the
key as text, or a list of objects in place of the map; all three are read.

Source: RocketMQ remoting, RemotingSerializable; fastjson 1.2, MapSerializer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from reput.errors import DamagedStore, RequestRefused
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode
from reput.store.config.config_json import Parser

__all__ = ["json_response", "object_keyed", "parse_body", "queue_table"]

encode_json = msgspec.json.Encoder().encode


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
        RequestRefused: SYSTEM_ERROR; it is neither JSON nor fastjson's dialect of it.
    """
    try:
        parser = BodyParser(data.decode())
        return parser.value()
    except (DamagedStore, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: error={error}") from None


def queue_table(table: object, value_name: str) -> dict[MessageQueue, Any]:
    """Return a map by message queues, whichever of its three forms it was sent in.

    Args:
        value_name: the field that holds the value in the form of a list.

    Raises:
        RequestRefused: SYSTEM_ERROR; it has another shape.
    """
    if isinstance(table, list):
        return {queue_of(entry): entry.get(value_name) for entry in table}
    if not isinstance(table, dict):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"a map by message queues is expected: type={type(table)}")
    return {
        key if isinstance(key, MessageQueue) else queue_of(parse_body(str(key).encode())): value
        for key, value in table.items()
    }


def queue_of(fields: object) -> MessageQueue:
    """Return the message queue that *fields* describe.

    Raises:
        RequestRefused: SYSTEM_ERROR; they describe none.
    """
    try:
        return msgspec.convert(fields, MessageQueue, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"this is no message queue: error={error}") from None


class BodyParser(Parser):
    """fastjson's dialect with message queues as keys."""

    def key(self) -> Any:
        if self.text[self.position : self.position + 1] == "{":
            return queue_of(self.mapping())
        return super().key()
