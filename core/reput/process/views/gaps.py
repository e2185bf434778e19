"""Gaps: log ranges that retention removed before a dispatcher had them, kept for ever in ``reput/gaps/NAME.jsonl``.

A line that is no gap, because a disk or a person has changed it, is reported and kept; it stops no dispatcher.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from reput.store.disk.json_lines import DamagedLine, JsonLines

__all__ = ["Gap", "Gaps"]


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The view lacks the bytes [begin, end) of the log. *timestamp*: when the gap was detected, ms."""

    timestamp: int
    begin: int
    end: int


class Gaps:
    """The gaps of one dispatcher's view.

    Attributes:
        known: the readable gaps.
        damaged_lines: all other lines.
    """

    def __init__(self, store_directory: Path, name: str) -> None:
        self.lines = JsonLines(store_directory / "reput" / "gaps" / f"{name}.jsonl", Gap)
        self.known: list[Gap] = []
        self.damaged_lines: list[DamagedLine] = []
        for line in self.lines.read_lines():
            if isinstance(line, DamagedLine):
                self.damaged_lines.append(line)
            else:
                self.known.append(line)

    @property
    def size(self) -> int:
        """Total bytes of all gaps. Gaps that overlap, after a crash during a start, count once."""
        total = end = 0
        for gap in sorted(self.known, key=lambda gap: gap.begin):
            total += max(0, gap.end - max(gap.begin, end))
            end = max(end, gap.end)
        return total

    def add(self, gap: Gap) -> None:
        """Keep *gap* durably, unless it is known."""
        if not any(known.begin <= gap.begin and gap.end <= known.end for known in self.known):
            self.lines.append(gap)
            self.known.append(gap)
