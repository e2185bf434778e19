"""The pass over the log: verifies every record of a range, and sums records up by the block in which they begin."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.store.log.bad_range import BadRange
from reput.table import LogTable
from reput.table.batch_decoder import BatchDecoder
from reput.table.record_parts import RecordParts
from reput_plugins.spark_export.proof.block_sums import BlockSums
from reput_plugins.spark_export.proof.proof_plan import ProofPlan

__all__ = ["LogFindings", "pass_log", "with_tags"]

Array = np.ndarray[Any, Any]

# Larger than for rows, because here each run costs more than each record.
WINDOW_ROWS = 16384


class LogFindings:
    """Findings about a range of the log: blocks, damage, and the number of records that the lake should have."""

    def __init__(self) -> None:
        self.sums = BlockSums()
        self.damage: list[BadRange] = []
        self.record_count = 0


def pass_log(plan: ProofPlan, begin: int, until: int) -> LogFindings:
    """Verify the records that begin in [begin, until), and sum up those that the lake keeps.

    Records that retention removes meanwhile are left out.
    """
    options = msgspec.structs.replace(
        plan.table, on_corruption="report", fail_on_data_loss=False, verify_crc="all", batch_rows=WINDOW_ROWS
    )
    log = LogTable(plan.store, options)
    findings = LogFindings()
    for parts, rows in log.records(begin, until):
        offsets = parts.columns.header["commit_log_offset"].astype(np.int64)
        rows = with_tags(plan, parts, rows)
        findings.sums.add(offsets if len(rows) == len(offsets) else offsets[rows])
        findings.record_count += len(rows)
    findings.damage = log.damage
    return findings


def with_tags(plan: ProofPlan, parts: RecordParts, rows: Array) -> Array:
    """Return those of *rows* whose tags the lake keeps."""
    if plan.tags is None:
        return rows
    decoder = BatchDecoder(msgspec.structs.replace(plan.table.row_format, columns=("tags",)))
    wanted = pa.array(plan.tags, pa.string())
    kept = [pc.is_in(batch["tags"], wanted).to_numpy(zero_copy_only=False) for batch in decoder.decode(parts, rows)]
    return rows[np.concatenate(kept)] if kept else rows
