"""Decoding: what all decoders of bodies share, and how they find bodies that do not fit.

A decoder turns a whole array of bodies into columns. If that fails, some body does not fit. Some decoders then run a
quick test on each body and refuse those that fail it. The remaining bodies are decoded in halves, and halves of halves,
until each body that does not fit is alone. So whether a body fits never depends on its neighbours, and a batch without
bad bodies costs no Python object per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

__all__ = ["BodyDecoder", "Decoded", "QuickReason", "decode_halves", "joined", "panics_as_errors", "short_reason"]

REASON_LETTERS_MAX = 300

Array = np.ndarray[Any, Any]
# Returns why a body does not fit; None if it may fit. It never refuses a body that the decoder would accept.
QuickReason = Callable[[bytes], str | None]


class Decoded:
    """The bodies that fit, as *rows*, and their numbers, *kept*; *refused* lists the others with number and reason."""

    __slots__ = ("kept", "refused", "rows")

    def __init__(self, rows: pa.Table, kept: Array, refused: list[tuple[int, str]]) -> None:
        self.rows = rows
        self.kept = kept
        self.refused = refused


class BodyDecoder(Protocol):
    """Turns bodies into columns. Use it from one thread at a time."""

    schema: pa.Schema

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the columns of the bodies that fit, in order, and the reasons of the others.

        Raises:
            DispatcherError: a registry does not answer, so it is unknown whether a body fits.
        """


def decode_halves(
    bodies: pa.BinaryArray,
    schema: pa.Schema,
    attempt: Callable[[pa.BinaryArray], pa.Table],
    errors: tuple[type[Exception], ...],
    quick_reason: QuickReason | None = None,
) -> Decoded:
    """Decode *bodies* with *attempt*, which returns a row per body or raises one of *errors*.

    Args:
        quick_reason: the quick test; called for each body if the whole array does not fit.
    """
    if quick_reason is not None and len(bodies):
        try:
            return Decoded(attempt(bodies), np.arange(len(bodies)), [])
        except errors:
            reasons = [quick_reason(body) for body in bodies.to_pylist()]
            passed = np.array([reason is None for reason in reasons])
            decoded = decode_halves(bodies.filter(pa.array(passed)), schema, attempt, errors)
            at = np.flatnonzero(passed)
            screened = [(number, short_reason(reason)) for number, reason in enumerate(reasons) if reason is not None]
            others = [(int(at[number]), reason) for number, reason in decoded.refused]
            return Decoded(decoded.rows, at[decoded.kept], sorted(screened + others))
    pieces: list[pa.Table] = []
    kept: list[Array] = []
    refused: list[tuple[int, str]] = []
    waiting = [(0, len(bodies))] if len(bodies) else []
    while waiting:
        first, count = waiting.pop()
        try:
            pieces.append(attempt(bodies.slice(first, count)))
            kept.append(np.arange(first, first + count))
        except errors as error:
            if count == 1:
                refused.append((first, short_reason(error)))
                continue
            half = count // 2
            # The first half is decoded next.
            waiting += [(first + half, count - half), (first, half)]
    rows = pa.concat_tables(pieces) if pieces else schema.empty_table()
    return Decoded(rows, np.concatenate(kept) if kept else np.empty(0, np.int64), refused)


def joined(parts: list[tuple[Decoded, Array]], schema: pa.Schema) -> Decoded:
    """Join the decoded parts of one array. Each part comes with the numbers of its bodies in the array."""
    kept = [at[decoded.kept] for decoded, at in parts]
    refused = [(int(at[number]), reason) for decoded, at in parts for number, reason in decoded.refused]
    if not parts:
        return Decoded(schema.empty_table(), np.empty(0, np.int64), [])
    numbers = np.concatenate(kept)
    rows = pa.concat_tables([decoded.rows for decoded, _ in parts])
    if len(parts) > 1:
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows.take(pa.array(order))
    return Decoded(rows, numbers, sorted(refused))


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a `ValueError` where a library in Rust panics.

    The library's own class is not an `Exception`, so a body that makes it panic would end the export.
    """
    try:
        yield
    except BaseException as error:
        # The class cannot be imported.
        if type(error).__name__ == "PanicException":
            raise ValueError(str(error)) from None
        raise


def short_reason(error: Exception | str) -> str:
    """Return an error's text as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LETTERS_MAX else f"{text[:REASON_LETTERS_MAX]}…"
