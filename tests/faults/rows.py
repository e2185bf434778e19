"""ROWS: the fault matrix, one row per fault and place, in the order of the page.

A row injects its fault, checks the store's promises, and returns how often it did so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

__all__ = ["ROWS", "Row", "row"]


class Row(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        fault, place: the fault and its place.
        afterwards: the result, in addition to the general promises.
        run: does it below a directory, and returns how often.
        marks: pytest marks of its test.
    """

    fault: str
    place: str
    afterwards: str
    run: Callable[[Path], int]
    marks: tuple[pytest.MarkDecorator, ...] = ()


ROWS: list[Row] = []


def row(
    fault: str, place: str, afterwards: str, *marks: pytest.MarkDecorator
) -> Callable[[Callable[[Path], int]], Callable[[Path], int]]:
    """Add a function to the matrix."""

    def enter(run: Callable[[Path], int]) -> Callable[[Path], int]:
        ROWS.append(Row(fault, place, afterwards, run, marks))
        return run

    return enter
