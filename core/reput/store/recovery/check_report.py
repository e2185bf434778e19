"""CheckReport: the results of `check`, in the fields that scripts rely on. Findings: those of one view so far.

A view is *equal* to the log, *behind* it (a correct prefix, in the order of the log), *different* or *absent*. Units
and entries of records that the log no longer has are no difference: below the log's begin they are expired, behind its
end stale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from reput.store.log.bad_range import BadRange

__all__ = ["CheckReport", "Findings", "Ranges", "ViewReport", "held_to_cursor", "points_into"]

Array = np.ndarray[Any, Any]
Ranges = list[tuple[int, int]]
DIFFERENCES_SHOWN = 10


class ViewReport(msgspec.Struct, frozen=True):
    """How one view compares with the log.

    Attributes:
        behind_bytes: from the first record that the view lacks to the log's end; 0 unless it is behind.
        differences: the first ten, as text.
        expired_count: pre-blank units, and units and entries below the log's begin.
        stale_count: units behind the queue's end, entries behind the log's.
        unverified_count: items without anything to compare with: bits of filters no longer known, units whose ext files
            are gone, anything that points into damage.
    """

    state: Literal["equal", "behind", "different", "absent"]
    behind_bytes: int = 0
    difference_count: int = 0
    differences: list[str] = []
    expired_count: int = 0
    stale_count: int = 0
    unverified_count: int = 0


class CheckReport(msgspec.Struct, frozen=True):
    """The results of a check.

    Attributes:
        ok: no damage, and no view is different.
        segments, records, bytes: of the log.
        clean_shutdown: the last writer closed the store.
        damage: bytes that differ from what was written, including those that an operator has accepted.
        stale: bytes behind the log's end that are left over from an older history, or from a crash.
        views: by name.
        notes: further facts, a sentence each.
    """

    ok: bool
    store: str
    segments: int
    records: int
    bytes: int
    clean_shutdown: bool
    damage: list[BadRange]
    stale: list[BadRange]
    views: dict[str, ViewReport]
    notes: list[str]


class Findings:
    """The findings about one view so far, with its records in the order of the log."""

    def __init__(self, *, live: bool = False) -> None:
        """*live*: the view is being built meanwhile, so a missing part may just not be built yet."""
        self.live = live
        self.difference_count = 0
        self.differences: list[str] = []
        self.expired_count = 0
        self.stale_count = 0
        self.unverified_count = 0
        self.first_missing: int | None = None
        self.missing_count = 0
        self.missing_texts: list[str] = []

    @property
    def are_none(self) -> bool:
        """Whether the view has a part of each record so far, and nothing else was found."""
        others = self.expired_count or self.stale_count or self.unverified_count
        return not (self.difference_count or self.missing_count or others)

    def differ(self, text: str, count: int = 1) -> None:
        """Note *count* differences; *text* describes one of them."""
        self.difference_count += count
        if len(self.differences) < DIFFERENCES_SHOWN:
            self.differences.append(text)

    def differ_at(self, numbers: Sequence[int], describe: Callable[[int], str]) -> None:
        """Note a difference for each of *numbers*."""
        self.difference_count += len(numbers)
        for number in numbers[: DIFFERENCES_SHOWN - len(self.differences)]:
            self.differences.append(describe(number))

    def take(self, offsets: Array, present: Array, describe: Callable[[int], str]) -> None:
        """Take in whether the view has its part of each record. *offsets* ascend, also from call to call.

        A missing part is a difference once a part behind it is present; until then the view is behind.
        """
        found = np.flatnonzero(present)
        at = 0
        if len(found) and not self.live:
            at = int(found[-1])
            self.difference_count += self.missing_count
            self.differences += self.missing_texts[: DIFFERENCES_SHOWN - len(self.differences)]
            self.first_missing, self.missing_count, self.missing_texts = None, 0, []
            self.differ_at(np.flatnonzero(~present[:at]).tolist(), describe)
        missing = (np.flatnonzero(~present[at:]) + at).tolist()
        if missing:
            if self.first_missing is None:
                self.first_missing = int(offsets[missing[0]])
            self.missing_count += len(missing)
            for number in missing[: DIFFERENCES_SHOWN - len(self.missing_texts)]:
                self.missing_texts.append(describe(number))

    def report(self, log_end: int) -> ViewReport:
        """Return the report of a view that is there."""
        behind = log_end - self.first_missing if self.first_missing is not None else 0
        return ViewReport(
            "different" if self.difference_count else "behind" if behind else "equal",
            behind,
            self.difference_count,
            self.differences,
            self.expired_count,
            self.stale_count,
            self.unverified_count,
        )


def points_into(offsets: Array, ranges: Ranges) -> Array:
    """Tell which of *offsets* lie in one of *ranges*."""
    inside = np.zeros(len(offsets), bool)
    for begin, end in ranges:
        inside |= (offsets >= begin) & (offsets < end)
    return inside


def held_to_cursor(report: ViewReport, log_end: int, durable_cursor: int | None) -> ViewReport:
    """Return *report*, different if the view has less than its dispatcher had on disk when it was closed.

    Args:
        durable_cursor: as it was noted, None where nothing was.
    """
    first_missing = log_end - report.behind_bytes
    if report.state != "behind" or durable_cursor is None or first_missing >= durable_cursor:
        return report
    lost = f"view has lost what was on disk: first_missing={first_missing} durable_cursor={durable_cursor}"
    return msgspec.structs.replace(report, state="different", difference_count=1, differences=[lost])
