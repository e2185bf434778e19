"""Checks of what a program hands to reput's methods: a wrong type is an error that names the argument and its value."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import isnan
from pathlib import Path
from typing import Any

from reput.errors import ConfigError, MessageIllegal
from reput.store.record.message import Message
from reput_hooks import Record

__all__ = [
    "OFFSET_MAX",
    "require_messages",
    "require_path",
    "require_record",
    "require_seconds",
    "require_text",
    "require_whole",
]

# Of bytes or of units: RocketMQ's are signed numbers of 64 bits.
OFFSET_MAX = 2**63 - 1


def require_whole(name: str, value: object, at_least: int | None = 0, at_most: int | None = None) -> None:
    """Refuse what is no whole number, or one below *at_least* or above *at_most*.

    Raises:
        ConfigError: it is.
    """
    # A numpy integer is a number, too; True is none.
    if type(value) is not int and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise ConfigError(f"{name} is not a whole number: {name}={value!r}", "Give an int.")
    if at_least is not None and value.__index__() < at_least:
        raise ConfigError(f"{name} is less than {at_least}: {name}={value!r}", f"Give {at_least} or more.")
    if at_most is not None and value.__index__() > at_most:
        raise ConfigError(f"{name} is more than {at_most}: {name}={value!r}", f"Give {at_most} or less.")


def require_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises:
        ConfigError: it is.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} is not text: {name}={value!r}", "Give a str.")


def require_path(name: str, value: object) -> Path:
    """Return the path that *value* is.

    Raises:
        ConfigError: it is none, or one that no file can have.
    """
    try:
        path = Path(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} is no path: {name}={value!r}", "Give a str or a pathlib.Path.") from None
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise ConfigError(f"no file is called so: {name}={str(path)!r}", "Give one without zero bytes and surrogates.")
    return path


def require_record(record: object) -> None:
    """Refuse what is no message that a consumer was given.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(record, Record):
        raise ConfigError(
            f"this is no message that was received: record={record!r:.100}",
            "Give what `receive` returned; it returns None where there was no message.",
        )


def require_seconds(name: str, value: object) -> None:
    """Refuse what is neither a number of seconds nor None.

    Raises:
        ConfigError: it is.
    """
    # A time that is no number never goes by.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)
    if not is_number and value is not None:
        raise ConfigError(f"{name} is not a number of seconds: {name}={value!r}", "Give a float, or None for no limit.")


def require_messages(messages: Iterable[Any]) -> None:
    """Refuse what is no message.

    Raises:
        MessageIllegal: one is something else.
    """
    for message in messages:
        if not isinstance(message, Message):
            raise MessageIllegal(
                f"this is no message: type={type(message).__name__} value={message!r:.100}",
                "Put a reput.Message(topic, body). Nothing was stored.",
            )
        if not isinstance(message.topic, str):
            raise MessageIllegal(f"topic is not text: topic={message.topic!r}")
