"""The properties string of a record: ``name 0x01 value 0x02 name 0x01 value 0x02 …``, UTF-8.

Source: RocketMQ common, MessageDecoder.messageProperties2String and string2messageProperties. Writers of 4.9.1 to 5.1
leave the last separator out; everyone reads both forms, and reput writes the one with it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "NAME_VALUE_SEPARATOR",
    "PROPERTIES_SIZE_MAX",
    "PROPERTY_SEPARATOR",
    "decode_properties",
    "encode_properties",
    "filled_properties",
]

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
# The size field is a signed short.
PROPERTIES_SIZE_MAX = 32767


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the properties string in the order of *properties*, with the trailing separator."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode("utf-8", "replace")


def decode_properties(data: bytes) -> dict[str, str]:
    """Return name → value in stored order; of equal names the last one with a value wins, in the place of the first.

    Pieces without a separator or without a name are no properties to any reader, RocketMQ's included. Empty values are
    kept where nothing else has their name: to RocketMQ they are none, so they replace no other.
    """
    properties: dict[str, str] = {}
    for piece in data.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if separator and name and (value or name not in properties):
            properties[name] = value
    return properties


def filled_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return *properties* as RocketMQ and its filters read them: without those that have no value."""
    return {name: value for name, value in properties.items() if value}
