"""White addresses: patterns of IP addresses from which one account, or every client, needs no signature.

    *                      every address                192.168.0.1,192.168.0.2    several
    192.168.0.*            any last number              192.168.0.{1,2}            one of several last numbers
    192.168.1-10.*         a range                      fe80:0:0:0:0:0:0:*         the same for IPv6, all eight groups

Source: RocketMQ acl, RemoteAddressStrategyFactory.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from reput.errors import ConfigError

__all__ = ["AddressMatcher", "address_matcher"]

AddressMatcher: TypeAlias = Callable[[str], bool]
# Commas within braces belong to one address.
OUTER_COMMA = re.compile(r",(?![^{]*\})")
NUMBERS = {".": (4, 10, 255), ":": (8, 16, 0xFFFF)}


def address_matcher(patterns: Iterable[str], source: str) -> AddressMatcher | None:
    """Return a function that tells whether an address matches one of *patterns*; None: there is no pattern.

    Raises:
        ConfigError: a pattern is not valid. The error contains *source*, the file and the key.
    """
    pieces = [piece.strip() for pattern in patterns for piece in OUTER_COMMA.split(pattern) if piece.strip()]
    if not pieces:
        return None
    exact: set[str] = set()
    ranges: list[tuple[str, list[list[range]]]] = []
    for piece in pieces:
        if piece in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
            return lambda address: True
        try:
            exact.add(str(ipaddress.ip_address(piece)))
        except ValueError:
            separator = ":" if ":" in piece else "."
            ranges.append((separator, parts_of(piece, separator, source)))

    def matches(address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        if str(known) in exact:
            return True
        separator = "." if known.version == 4 else ":"
        base = NUMBERS[separator][1]
        numbers = [int(number, base) for number in known.exploded.split(separator)]
        return any(
            kind == separator
            and all(any(number in one for one in part) for number, part in zip(numbers, parts, strict=True))
            for kind, parts in ranges
        )

    return matches


def parts_of(pattern: str, separator: str, source: str) -> list[list[range]]:
    """Return the numbers that each part of an address may have."""
    count, base, number_max = NUMBERS[separator]
    parts = pattern.split(separator)
    if parts[-1] == "*":
        parts += ["*"] * (count - len(parts))
    try:
        if len(parts) != count:
            raise ValueError(f"it has {len(parts)} parts")
        return [part_of(part, base, number_max) for part in parts]
    except ValueError as error:
        raise ConfigError(
            f"a white address is not valid: {source}={pattern!r} reason={error}",
            "Write an address, *, or a pattern like 192.168.0.* or 192.168.1-10.*.",
        ) from None


def part_of(part: str, base: int, number_max: int) -> list[range]:
    """Return the numbers that one part allows."""
    if part == "*":
        return [range(number_max + 1)]
    found = []
    for piece in part.removeprefix("{").removesuffix("}").split(","):
        first, dash, last = piece.strip().partition("-")
        low, high = int(first, base), int(last if dash else first, base)
        if not 0 <= low <= high <= number_max:
            raise ValueError(f"numbers lie between 0 and {number_max}")
        found.append(range(low, high + 1))
    return found
