"""Sealed files: either the written content or an error."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import DamagedStore
from reput.store.disk.sealed_file import read_sealed, seal


class Held(msgspec.Struct):
    """Content of a sealed file."""

    name: str
    numbers: dict[int, int] = {}


def test_what_was_sealed_is_read(tmp_path):
    """The first line is the checksum, the second is readable JSON."""
    path = tmp_path / "held"
    path.write_bytes(seal(Held("订单", {1: 2})))
    assert read_sealed(path, Held) == Held("订单", {1: 2})
    head, text, rest = path.read_bytes().split(b"\n")
    assert head.startswith(b"crc32c=")
    assert text == '{"name":"订单","numbers":{"1":2}}'.encode()
    assert rest == b""


def test_the_checksum_is_crc_32c(tmp_path):
    """Of everything after the first line; the check value of the algorithm is E3069283."""
    from crcmod.predefined import mkPredefinedCrcFun

    crc32c = mkPredefinedCrcFun("crc-32c")
    assert crc32c(b"123456789") == 0xE3069283
    data = seal({"a": 1})
    assert data.split(b"\n")[0] == b"crc32c=%08X" % crc32c(b'{"a":1}\n')


def test_an_absent_file_is_none(tmp_path):
    """It was never written."""
    assert read_sealed(tmp_path / "absent", Held) is None


def test_a_flipped_byte_anywhere_is_damage(tmp_path):
    """So is a file that was cut short. The error has the path."""
    path = tmp_path / "held"
    data = seal(Held("name"))
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(DamagedStore, match=str(path)):
            read_sealed(path, Held)
        path.write_bytes(data[:at])
        with pytest.raises(DamagedStore):
            read_sealed(path, Held)


def test_a_file_of_another_shape_is_damage(tmp_path):
    """Its checksum is right, but the content is different."""
    path = tmp_path / "held"
    path.write_bytes(seal({"other": 1}))
    with pytest.raises(DamagedStore, match="an unexpected structure"):
        read_sealed(path, Held)
