"""RemotingCommand: one request or response, and its frame.

    length (4) │ serialize type (1), header length (3) │ header │ body

*length* counts the bytes after it. The header is JSON (type 0) or RocketMQ's own binary form (type 1); each frame
names its type. All numbers are big-endian.

Source: RocketMQ remoting, RemotingCommand, RemotingSerializable and RocketMQSerializable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, TypeAlias

import msgspec

from reput.errors import ReputError
from reput.json_encoding import encode_json

__all__ = [
    "FRAME_SIZE_MAX",
    "LANGUAGE",
    "VERSION",
    "FrameError",
    "ReceivedFields",
    "RemotingCommand",
    "SerializeType",
    "decode_frame",
    "encode_frame",
    "next_opaque",
]

# The largest frame, including the length word.
FRAME_SIZE_MAX = 16 << 20
# Properties and filter expressions are the largest fields that clients send. JSON takes up to 20 times its size.
HEADER_SIZE_MAX = 1 << 20
# RocketMQ 5.3.3: determines which features clients expect of this peer.
VERSION = 479
LANGUAGE = "PYTHON"
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
OTHER_LANGUAGE = "OTHER"
LANGUAGE_NUMBERS = {language: number for number, language in enumerate(LANGUAGES)}

OBJECT_BEGIN = ord("{")
BYTES = (bytes, memoryview)
LENGTHS = Struct(">iI")
# code, language, version, opaque, flag, length of the remark
BINARY_HEAD = Struct(">hBhiii")
INT = Struct(">i")
SHORT = Struct(">h")
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
NO_FIELDS = msgspec.Raw(b"{}")


class FrameError(ReputError):
    """The bytes are not a frame, so their connection cannot be used any more."""

    advice = "Check that the peer speaks RocketMQ's remoting protocol."


class SerializeType(enum.IntEnum):
    """The form of a header."""

    JSON = 0
    ROCKETMQ = 1


class ReceivedFields(Mapping[str, str]):
    """The custom header of a received command, decoded at its first use.

    Attributes:
        raw: the JSON of the header.
    """

    __slots__ = ("found", "raw")

    def __init__(self, raw: msgspec.Raw) -> None:
        self.raw = raw
        self.found: dict[str, str] | None = None

    def decoded(self) -> dict[str, str]:
        """Return the fields."""
        found = self.found
        if found is None:
            try:
                found = decode_fields_of_json(self.raw)
            except (msgspec.ValidationError, UnicodeDecodeError):
                found = self.loosely()
            self.found = found
        return found

    def loosely(self) -> dict[str, str]:
        """Return the fields if some of them are not text.

        Raises:
            FrameError: a field cannot be decoded.
        """
        try:
            return loose_fields(msgspec.json.decode(self.raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"extFields in a header cannot be decoded: error={error}") from None

    def __getitem__(self, name: str) -> str:
        return self.decoded()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.decoded()

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded())

    def __len__(self) -> int:
        return len(self.decoded())

    def get(self, name: str, default: Any = None) -> Any:
        return self.decoded().get(name, default)

    def __repr__(self) -> str:
        return repr(self.decoded())


class RemotingCommand(msgspec.Struct, gc=False):
    """One request or response.

    Attributes:
        code: the request code, or the response code.
        ext_fields: the custom header. Every value is text.
        body: the bytes of the body, or several consecutive pieces of it.
        opaque: request number, copied into the response.
        flag: 1: a response. 2: a one-way request.
    """

    code: int
    ext_fields: Mapping[str, str] = {}
    body: bytes | memoryview | Sequence[bytes] = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = LANGUAGE
    version: int = VERSION
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether this request must not be answered, not even with an error."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def body_bytes(self) -> bytes:
        """The body in one piece."""
        body = self.body
        if type(body) is bytes:
            return body
        return bytes(body) if isinstance(body, BYTES) else b"".join(body)

    def response_to(self, request: RemotingCommand) -> RemotingCommand:
        """Make this the response to *request*, in the same header form; return it."""
        self.opaque = request.opaque
        self.flag |= RESPONSE_FLAG
        self.serialize_type = request.serialize_type
        return self


class Header(msgspec.Struct, rename="camel", gc=False):
    """The JSON header. Unknown members are ignored."""

    code: Int
    flag: Int = 0
    language: str = ""
    opaque: Int = 0
    version: int = 0
    remark: str | None = None
    ext_fields: msgspec.Raw = NO_FIELDS


class SentHeader(msgspec.Struct, rename="camel", gc=False):
    """The JSON header as it is sent."""

    code: int
    ext_fields: dict[str, str]
    flag: int
    language: str
    opaque: int
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int
    remark: str | msgspec.UnsetType


decode_header = msgspec.json.Decoder(Header).decode
decode_fields_of_json = msgspec.json.Decoder(dict[str, str]).decode
opaques = count(1)


def next_opaque() -> int:
    """Return a request number, unique within the process until 31 bits are used up."""
    return next(opaques) & INT_MAX


def decode_frame(data: bytes | memoryview) -> RemotingCommand:
    """Return the command of a frame; *data* excludes the length word.

    Raises:
        FrameError: the bytes are not a command.
    """
    if len(data) < 4:
        raise FrameError(f"a frame has no header: frame_size={len(data)}")
    word = int.from_bytes(data[:4], "big")
    serialize_type, header_size = word >> 24, word & 0xFFFFFF
    end = 4 + header_size
    if header_size > HEADER_SIZE_MAX:
        raise FrameError(f"a header is too large: header_size={header_size} header_size_max={HEADER_SIZE_MAX}")
    if end > len(data):
        raise FrameError(f"a header is longer than its frame: header_size={header_size} frame_size={len(data)}")
    body = bytes(data[end:])
    if serialize_type == 0:
        # A copy, because the fields are decoded later, when the buffer has other bytes.
        return decode_json(bytes(data[4:end]), body)
    if serialize_type == 1:
        return decode_binary(bytes(data[4:end]), body)
    raise FrameError(f"a header has an unknown form: serialize_type={serialize_type}")


def decode_json(data: bytes, body: bytes) -> RemotingCommand:
    """Return the command of a JSON header."""
    try:
        header = decode_header(data)
        raw = header.ext_fields
        fields: Mapping[str, str] = ReceivedFields(raw)
        if memoryview(raw)[0] != OBJECT_BEGIN:
            header, fields = decode_loosely(data)
    except (msgspec.ValidationError, UnicodeDecodeError):
        header, fields = decode_loosely(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"a header is not JSON: error={error}") from None
    return RemotingCommand(
        header.code,
        fields,
        body,
        header.remark,
        header.opaque,
        header.flag,
        header.language or OTHER_LANGUAGE,
        header.version,
    )


def decode_loosely(data: bytes | memoryview) -> tuple[Header, dict[str, str]]:
    """Return a header and its fields, even if members have types that RocketMQ's own clients do not send.

    Java accepts numbers and booleans as text in ``extFields``, and omits null members.
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a header is not JSON: error={error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("code"), int):
        raise FrameError("a header has no code")
    fields = found.pop("extFields", None)
    if fields is not None and not isinstance(fields, dict):
        raise FrameError(f"extFields in a header are not an object: type={type(fields).__name__}")
    for name in ("language", "remark"):
        if not isinstance(found.get(name, ""), str):
            del found[name]
    try:
        header = msgspec.convert({name: value for name, value in found.items() if value is not None}, Header)
    except msgspec.ValidationError as error:
        raise FrameError(
            f"a header has a field of a wrong type, or a number of more than 32 bits: error={error}"
        ) from None
    return header, loose_fields(fields or {})


def loose_fields(fields: dict[str, Any]) -> dict[str, str]:
    """Return custom fields of any type as Java converts them to text. A null counts as a missing field."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in fields.items()
        if value is not None
    }


def decode_binary(data: bytes, body: bytes) -> RemotingCommand:
    """Return the command of a binary header."""
    try:
        code, language, version, opaque, flag, remark_size = BINARY_HEAD.unpack_from(data)
        at = BINARY_HEAD.size
        if not 0 <= remark_size <= len(data) - at:
            raise FrameError(f"a remark is longer than its header: remark_size={remark_size} header_size={len(data)}")
        remark = data[at : at + remark_size].decode() if remark_size else None
        at += remark_size
        (fields_size,) = INT.unpack_from(data, at)
        at += INT.size
        if not 0 <= fields_size <= len(data) - at:
            raise FrameError(f"fields are longer than their header: fields_size={fields_size} header_size={len(data)}")
        fields = decode_fields(data, at, at + fields_size)
    except StructError as error:
        raise FrameError(f"a header ends too early: header_size={len(data)} error={error}") from None
    except UnicodeDecodeError as error:
        raise FrameError(f"a text in a header is not UTF-8: position={error.start}") from None
    return RemotingCommand(
        code,
        fields,
        body,
        remark,
        opaque,
        flag,
        LANGUAGES[language] if language < len(LANGUAGES) else OTHER_LANGUAGE,
        version,
        SerializeType.ROCKETMQ,
    )


def decode_fields(data: bytes, at: int, end: int) -> dict[str, str]:
    """Return the custom fields in ``data[at:end]`` of a binary header. Fields without a value are omitted."""
    fields: dict[str, str] = {}
    while at < end:
        (size,) = SHORT.unpack_from(data, at)
        at += SHORT.size
        if not 0 <= size <= end - at:
            raise FrameError(f"a field's name is longer than its header: size={size} left={end - at}")
        name = data[at : at + size].decode()
        at += size
        (size,) = INT.unpack_from(data, at)
        at += INT.size
        if not 0 <= size <= end - at:
            raise FrameError(f"a field's value is longer than its header: name={name!r} size={size} left={end - at}")
        if size:
            fields[name] = data[at : at + size].decode()
        at += size
    return fields


def encode_frame(command: RemotingCommand) -> list[bytes | memoryview]:
    """Return the frame of *command* in pieces, without copying the body.

    Raises:
        FrameError: the frame exceeds the size that peers accept.
    """
    body = command.body
    pieces = [body] if isinstance(body, BYTES) else list(body)
    body_size = sum(map(len, pieces))
    header = encode_json_header(command) if command.serialize_type == 0 else encode_binary(command)
    size = 4 + len(header) + body_size
    if size + 4 > FRAME_SIZE_MAX:
        raise FrameError(f"a frame is too large: frame_size={size + 4} frame_size_max={FRAME_SIZE_MAX}")
    head = LENGTHS.pack(size, command.serialize_type << 24 | len(header)) + header
    return [head, *pieces] if body_size else [head]


def encode_json_header(command: RemotingCommand) -> bytes:
    """Return a JSON header. ``extFields`` is always included: Java relies on it in some responses."""
    fields = command.ext_fields
    header = SentHeader(
        command.code,
        fields if type(fields) is dict else dict(fields),
        command.flag,
        command.language,
        command.opaque,
        "JSON",
        command.version,
        msgspec.UNSET if command.remark is None else command.remark,
    )
    return encode_json(header)


def encode_binary(command: RemotingCommand) -> bytes:
    """Return a binary header."""
    remark = (command.remark or "").encode("utf-8", "replace")
    fields = bytearray()
    for name, value in command.ext_fields.items():
        key, text = name.encode(), value.encode("utf-8", "replace")
        fields += SHORT.pack(len(key)) + key + INT.pack(len(text)) + text
    head = BINARY_HEAD.pack(
        command.code,
        LANGUAGE_NUMBERS.get(command.language, LANGUAGE_NUMBERS[OTHER_LANGUAGE]),
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, INT.pack(len(fields)), fields))
