"""StoredFields: one object of a broker's configuration files. It keeps the fields of other RocketMQ versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

__all__ = ["DataVersion", "StoredFields"]


class StoredFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of such objects. Fields are RocketMQ's in snake case; None stands for a field that is not written.

    Attributes:
        unknown: fields without an attribute, as they were read; they are written back.
    """

    unknown: dict[str, Any] = {}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the object that a file describes.

        Raises:
            msgspec.ValidationError: a field has another type or is missing.
        """
        names = {*cls.__struct_encode_fields__} - {"unknown"}
        # To RocketMQ a null is a field that is not there.
        known = {name: value for name, value in fields.items() if name in names and value is not None}
        unknown = {name: value for name, value in fields.items() if name not in names}
        return msgspec.convert({**known, "unknown": unknown}, cls, strict=False)

    def to_fields(self) -> dict[str, Any]:
        """Return the object as a file describes it, its fields in the order of their names."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return dict(sorted((fields | fields.pop("unknown")).items()))


class DataVersion(StoredFields, frozen=True):
    """How often a table was changed, and when last. RocketMQ compares them to see whether to send a table again.

    Attributes:
        state_version: a 5.x controller's; None in a file of 4.x.
    """

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change."""
        return msgspec.structs.replace(self, counter=self.counter + 1, timestamp=now_ms)
