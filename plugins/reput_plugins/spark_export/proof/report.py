"""LakeCheckReport: the findings of `check --lake`, in the fields of `check` and in fields of its own."""

from __future__ import annotations

import msgspec

from reput.store.log.bad_range import BadRange
from reput.store.recovery.check_report import CheckReport
from reput_plugins.spark_export.proof.offsets import MissingRange

__all__ = ["LakeCheckReport", "LakeReport", "TablesCheckReport", "WatermarkReport"]


class WatermarkReport(msgspec.Struct, frozen=True):
    """The watermarks of a store: *count* of them, which cover *rows* up to *until*; *difference_count* do not fit."""

    count: int = 0
    rows: int = 0
    until: int | None = None
    difference_count: int = 0


class LakeReport(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """One version of a lake, compared with one store's log.

    Attributes:
        lake: address of the lake.
        store_name: value of the column ``store`` in the store's rows; None: there is no such column.
        begin, until: the part of the log that was compared: from where the log begins to where the lake ends.
        records: number of records in this part that the lake should have.
        rows: number of all rows of the store.
        dead_letters: number of all dead letters of the store, beside a typed table. Unless the table has a key, each
            record has either a row or a dead letter.
        replaced_count: in a table with a key, records without a row: later messages replaced or removed them.
        missing_count: records without a row; *missing* lists the first ranges.
        changed_count: rows that differ from their records.
        doubled_count: rows beyond the first of a record.
        extra_count: rows without a record, of topics that the lake does not keep, or behind the lake's end.
        cut_count: rows of history that was cut from the log.
        foreign_count: rows of stores that the lake does not know.
        hidden_count: files whose rows readers skip, because the table describes them wrongly.
        unreadable_count: files that cannot be read.
        uncheckable_count: rows below the log's begin. Retention removed their records, so they are the only copy.
        unverified_count: rows whose records are damaged.
        left_out_count: records that a transaction names as damaged, and which therefore have no row.
        left_out: the ranges of these records.
        log_bytes, lake_bytes: bytes read, once each, of log and lake.
        mb_per_s: 10**6 bytes of the log per second.
    """

    lake: str
    table_version: int
    store_name: str | None
    begin: int
    until: int
    records: int
    rows: int
    missing_count: int
    changed_count: int
    doubled_count: int
    extra_count: int
    cut_count: int
    foreign_count: int
    hidden_count: int
    unreadable_count: int
    uncheckable_count: int
    unverified_count: int
    left_out_count: int
    missing: list[MissingRange]
    left_out: list[BadRange]
    watermarks: WatermarkReport
    log_bytes: int
    lake_bytes: int
    seconds: float
    mb_per_s: float
    dead_letters: int = 0
    replaced_count: int = 0


class LakeCheckReport(CheckReport, frozen=True):
    """The results of `check --lake`. Its only view is ``lake``; the views of the store are not compared."""

    lake: LakeReport


class TablesCheckReport(CheckReport, frozen=True):
    """The results of `check --lake` for typed tables. Its views are the tables, by name; *tables* has their numbers.

    The log's *records* and *bytes* are those of the longest table.
    """

    tables: dict[str, LakeReport]
