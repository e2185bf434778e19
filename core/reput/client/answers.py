"""Answers: what the answer of a broker or a name server says; it may be damaged, or belong to another request."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from reput.errors import BrokerError
from reput.remoting.remoting_command import RemotingCommand

__all__ = ["decoded", "number_of"]

Body = TypeVar("Body")


def number_of(response: RemotingCommand, name: str) -> int:
    """Return the number in a field of an answer.

    Raises:
        BrokerError: the field is not there, or holds no number.
    """
    try:
        return int(response.ext_fields[name])
    except (KeyError, ValueError):
        raise BrokerError(f"the answer has no number in a field: field={name} fields={response.ext_fields}") from None


def decoded(body: bytes, kind: type[Body]) -> Body:
    """Return the body of an answer, which is JSON.

    Raises:
        BrokerError: it is something else.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokerError(f"the answer cannot be read: expected={kind.__name__} error={error}") from None
