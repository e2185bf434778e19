"""Search of consume-queue units for tags codes, many units at a time and without taking each apart.

Source of the layout: `reput.store.queue.consume_queue`.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["find_tags_codes"]

UNIT_SIZE = 20
TAGS_CODE_AT = 12
TAGS_CODE_SIZE = 8
LAST_BYTE_AT = TAGS_CODE_AT + TAGS_CODE_SIZE - 1
# Each byte of the upper half of a tags code that is a hash, by the highest byte of the lower half.
SIGN_EXTENSION = bytes(0x00 if byte < 0x80 else 0xFF for byte in range(256))


def find_tags_codes(units: bytes, codes: Iterable[int], count_max: int) -> list[int] | None:
    """Return the numbers of the first *count_max* whole *units* whose tags code is one of *codes*, ascending.

    None: one of the tags codes is not a signed 32-bit number but the address of an ext unit or a time, which does not
    show the tag.
    """
    # The n-th byte of every unit at once. One in 256 unwanted units has the same last byte and is compared in vain.
    upper = units[TAGS_CODE_AT::UNIT_SIZE]
    if not (
        upper
        == units[TAGS_CODE_AT + 1 :: UNIT_SIZE]
        == units[TAGS_CODE_AT + 2 :: UNIT_SIZE]
        == units[TAGS_CODE_AT + 3 :: UNIT_SIZE]
        == units[TAGS_CODE_AT + 4 :: UNIT_SIZE].translate(SIGN_EXTENSION)
    ):
        return None
    last_bytes = units[LAST_BYTE_AT::UNIT_SIZE]
    found: list[int] = []
    for code in codes:
        wanted = code.to_bytes(TAGS_CODE_SIZE, "big", signed=True)
        number = last_bytes.find(wanted[-1])
        before = len(found)
        while number >= 0 and len(found) - before < count_max:
            if units.startswith(wanted, number * UNIT_SIZE + TAGS_CODE_AT):
                found.append(number)
            number = last_bytes.find(wanted[-1], number + 1)
    found.sort()
    return found[:count_max]
