"""Finds the missing, doubled and superfluous offsets in blocks whose sums differ between log and lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from reput.store.log.bad_range import BadRange
from reput.table import LogTable
from reput_plugins.spark_export.parquet_files import STORE_COLUMN
from reput_plugins.spark_export.proof.block_sums import BLOCK_SIZE
from reput_plugins.spark_export.proof.file_pass import deleted_in, log_batches, open_file, rows_of_store
from reput_plugins.spark_export.proof.findings import DIFFERENCES_SHOWN, Differences
from reput_plugins.spark_export.proof.log_pass import with_tags
from reput_plugins.spark_export.proof.proof_plan import OFFSET_COLUMN, LakeFile, ProofPlan

__all__ = ["MissingRange", "OffsetFindings", "runs_of_blocks", "sort_out"]

# Up to this many neighbouring blocks are compared together.
RUN_BLOCKS_MAX = 64
RANGES_SHOWN = 100

Array = np.ndarray[Any, Any]


class MissingRange(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """A range of the log whose *records* have no row. In the lake's topics, they follow each other without a gap."""

    begin: int
    until: int
    records: int


class OffsetFindings:
    """Missing, doubled and superfluous offsets.

    *left_out* counts records that a transaction lists as damaged, *replaced* those without a row in a table with a key.
    """

    def __init__(self) -> None:
        self.differences = Differences()
        self.missing: list[MissingRange] = []
        self.left_out = 0
        self.replaced = 0


def runs_of_blocks(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the offsets [begin, until) of runs of neighbouring blocks; *blocks* ascend."""
    if not blocks:
        return
    first = blocks[0]
    for one, following in pairwise([*blocks, blocks[-1] + 2]):
        if following != one + 1 or one + 1 - first >= RUN_BLOCKS_MAX:
            yield first * BLOCK_SIZE, (one + 1) * BLOCK_SIZE
            first = following


def sort_out(
    plan: ProofPlan,
    files: Sequence[LakeFile],
    without_record: Array,
    known_damage: Sequence[BadRange],
    begin: int,
    until: int,
    findings: OffsetFindings,
) -> None:
    """Compare the offsets of the records that begin in [begin, until) with those of the rows.

    Args:
        without_record: offsets without a record, about which the pass over the files has already decided.
        known_damage: ranges that a transaction left out.
    """
    options = msgspec.structs.replace(plan.table, on_corruption="report", fail_on_data_loss=False)
    log = LogTable(plan.store, options)
    low = log.aligned(max(begin, log.offset_min), plan.until)
    high = log.aligned(until, plan.until) if until < plan.until else plan.until
    runs = [
        parts.columns.header["commit_log_offset"][with_tags(plan, parts, rows)].astype(np.int64)
        for parts, rows in log.records(low, high)
    ]
    records = np.concatenate(runs) if runs else np.empty(0, np.int64)
    records = records[(records >= begin) & (records < until)]
    rows = row_offsets(plan, files, max(begin, log.offset_min), min(until, plan.until))
    rows = rows[~np.isin(rows, without_record)]
    distinct, counts = np.unique(rows, return_counts=True)
    in_log = np.isin(distinct, records)
    for at, count in zip(distinct[in_log & (counts > 1)].tolist(), counts[in_log & (counts > 1)].tolist(), strict=True):
        text = f"record has several rows: commit_log_offset={at} rows={count}"
        findings.differences.note("doubled", at, text, count - 1)
    superfluous = distinct[~in_log].tolist()
    findings.differences.note_rows("extra", superfluous, "row without a record that the lake keeps")
    missing = ~np.isin(records, distinct)
    left_out = np.zeros(len(records), np.bool_)
    for known in known_damage:
        left_out |= (records >= known.begin) & (records < known.end)
    findings.left_out += int((missing & left_out).sum())
    if plan.keyed:
        findings.replaced += int((missing & ~left_out).sum())
    else:
        note_missing(records, missing & ~left_out, high, findings)


def note_missing(records: Array, missing: Array, until: int, findings: OffsetFindings) -> None:
    """Note the records whose flag in *missing* is true, as ranges."""
    numbers = np.flatnonzero(missing)
    if not len(numbers):
        return
    findings.differences.counts["missing"] += len(numbers)
    ends = np.append(records[1:], until)
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
        begin, end = int(records[run[0]]), int(ends[run[-1]])
        if len(findings.missing) < RANGES_SHOWN:
            findings.missing.append(MissingRange(begin, end, len(run)))
        if len(findings.differences.first) <= DIFFERENCES_SHOWN:
            text = f"records without a row: commit_log_offset={begin} until={end} records={len(run)}"
            findings.differences.note("missing", begin, text, 0)


def row_offsets(plan: ProofPlan, files: Sequence[LakeFile], begin: int, until: int) -> Array:
    """Return the offsets in [begin, until) of the store's rows; *files* have the true bounds of their rows."""
    found = [np.empty(0, np.int64)]
    for file in files:
        if not file.may_hold(begin, until):
            continue
        names = [OFFSET_COLUMN] if plan.store_name is None else [OFFSET_COLUMN, STORE_COLUMN]
        try:
            of_log = plan.parts[file.part].names
            for batch in log_batches(open_file(plan, file), of_log, names, deleted_in(plan, file)):
                offsets = rows_of_store(plan, batch)[OFFSET_COLUMN].drop_null().to_numpy()
                found.append(offsets[(offsets >= begin) & (offsets < until)])
        except (OSError, pa.ArrowInvalid):
            # The pass over the files has reported that.
            continue
    return np.concatenate(found)
