"""The value of one setting: converted from text or a Python value to the field's type, with bounds checked."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from msgspec import inspect

from reput.errors import ConfigError
from reput.settings.settings import Settings
from reput.settings.sources import Assignment

__all__ = ["field_value", "option_value", "spark_value", "value_text"]

WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
BOOLEANS = {"true": True, "false": False}


@cache
def field_types() -> dict[str, inspect.Type]:
    """Return the type of each field of `Settings`: looked up by the first setting that is given, not at each start."""
    found = inspect.type_info(Settings)
    assert isinstance(found, inspect.StructType)
    return {field.name: field.type for field in found.fields}


def field_value(field: str, assignment: Assignment) -> Any:
    """Return the value of *assignment*, converted to the type of *field* of `Settings`.

    Raises:
        ConfigError: wrong type or out of bounds; the error spells the name as the user did.
    """
    wanted = field_types()[field]
    value = assignment.value
    if assignment.textual:
        value = parse_text(str(value), wanted)
    match wanted:
        case inspect.IntType(ge=low, le=high):
            if type(value) is int and (low is None or value >= low) and (high is None or value <= high):
                return value
            expected = f"a whole number from {low} to {high}"
        case inspect.BoolType():
            if isinstance(value, bool):
                return value
            expected = "true or false"
        case inspect.LiteralType(values=choices):
            if value in choices:
                return value
            expected = "one of " + ", ".join(str(choice) for choice in choices)
        case inspect.StrType():
            if isinstance(value, str):
                return value
            expected = "text"
        case inspect.VarTupleType():
            if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
                return tuple(value)
            expected = "a list of names"
        case _:
            raise AssertionError(f"a setting of this type is not assigned as a whole: {field}")
    raise ConfigError(
        f"{assignment.name} takes {expected}: {assignment.name}={assignment.value} source={assignment.source}"
    )


def parse_text(text: str, wanted: inspect.Type) -> object:
    """Return *text* as a number, a truth value or a list if *wanted* is such a type and *text* fits; else *text*."""
    text = text.strip()
    match wanted:
        case inspect.IntType() if WHOLE_NUMBER.fullmatch(text):
            return int(text)
        case inspect.BoolType():
            # RocketMQ takes every word but "true" for false; reput refuses a misspelt switch instead.
            return BOOLEANS.get(text.lower(), text)
        case inspect.VarTupleType():
            return [name for part in text.split(",") if (name := part.strip())]
    return text


def option_value(assignment: Assignment) -> object:
    """Return the value of a dispatcher's option; the plugin's own struct checks it later.

    A text stays a text, which the struct converts leniently, unless it is a TOML array or inline table.

    Raises:
        ConfigError: the text begins like an array or a table, and is not one.
    """
    value = assignment.value
    if not assignment.textual or not str(value).lstrip().startswith(("[", "{")):
        return value
    # Few options are arrays or tables; every command loads this module.
    import tomllib

    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{assignment.name} is neither text nor a TOML array or table: "
            f"{assignment.name}={value} reason={error} source={assignment.source}"
        ) from None


def spark_value(assignment: Assignment) -> str:
    """Return the value as text, the only type that Spark's options have."""
    value = assignment.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigError(f"{assignment.name} takes text or a number: {assignment.name}={value} source={assignment.source}")


def value_text(value: object) -> str:
    """Return the value of a setting as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
