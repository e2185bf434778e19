"""The pass over the log: verifies every record of a range, and sums records up by the block in which they begin."""

from __future__ import annotations

import msgspec
import numpy as np

from reput.store.log.bad_range import BadRange
from reput.table import LogTable
from reput_plugins.spark_export.proof.block_sums import BlockSums
from reput_plugins.spark_export.proof.proof_plan import ProofPlan

__all__ = ["LogFindings", "pass_log"]

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
        findings.sums.add(offsets if len(rows) == len(offsets) else offsets[rows])
        findings.record_count += len(rows)
    findings.damage = log.damage
    return findings
