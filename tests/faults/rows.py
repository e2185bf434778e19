"""ROWS: the fault matrix, one row per fault and place, in the order in which the page shows them.

A row does its fault, holds the store to its promises, and says how often it did it.
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
        fault, place: what happens, and where.
        afterwards: what holds then, besides what always does.
        run: does it below a directory, and returns how often it was done.
        marks: of its test.
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
    """Enter a function into the matrix."""

    def enter(run: Callable[[Path], int]) -> Callable[[Path], int]:
        ROWS.append(Row(fault, place, afterwards, run, marks))
        return run

    return enter
