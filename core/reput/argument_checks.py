"""Checks of arguments of reput's methods: a wrong type is an error that names the argument and its value."""

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

# For bytes and units: RocketMQ's offsets are signed 64-bit numbers.
OFFSET_MAX = 2**63 - 1


def require_whole(name: str, value: object, at_least: int | None = 0, at_most: int | None = None) -> None:
    """Refuse a value that is not a whole number, is below *at_least* or above *at_most*.

    Raises:
        ConfigError: it is.
    """
    # Accept numpy integers, but not True.
    if type(value) is not int and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise ConfigError(f"{name} is not a whole number: {name}={value!r}", "Give an int.")
    if at_least is not None and value.__index__() < at_least:
        raise ConfigError(f"{name} is less than {at_least}: {name}={value!r}", f"Give {at_least} or more.")
    if at_most is not None and value.__index__() > at_most:
        raise ConfigError(f"{name} is more than {at_most}: {name}={value!r}", f"Give {at_most} or less.")


def require_text(name: str, value: object) -> None:
    """Refuse a value that is not text.

    Raises:
        ConfigError: it is.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} is not text: {name}={value!r}", "Give a str.")


def require_path(name: str, value: object) -> Path:
    """Return *value* as a path.

    Raises:
        ConfigError: it is not a path, or not a possible name of a file.
    """
    try:
        path = Path(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} is not a path: {name}={value!r}", "Give a str or a pathlib.Path.") from None
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise ConfigError(
            f"{name} cannot be the name of a file: {name}={str(path)!r}",
            "Give a path without zero bytes and surrogates.",
        )
    return path


def require_record(record: object) -> None:
    """Refuse a value that is not a received message.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(record, Record):
        raise ConfigError(
            f"record is not a received message: record={record!r:.100}",
            "Give a record returned by `receive`, which returns None if there was no message.",
        )


def require_seconds(name: str, value: object) -> None:
    """Refuse a value that is neither a number of seconds nor None.

    Raises:
        ConfigError: it is.
    """
    # NaN is not a duration.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)
    if not is_number and value is not None:
        raise ConfigError(f"{name} is not a number of seconds: {name}={value!r}", "Give a float, or None for no limit.")


def require_messages(messages: Iterable[Any]) -> None:
    """Refuse values that are not messages.

    Raises:
        MessageIllegal: one is something else.
    """
    for message in messages:
        if not isinstance(message, Message):
            raise MessageIllegal(
                f"this is not a message: type={type(message).__name__} value={message!r:.100}",
                "Put a reput.Message(topic, body). Nothing was stored.",
            )
        if not isinstance(message.topic, str):
            raise MessageIllegal(f"topic is not text: topic={message.topic!r}")
