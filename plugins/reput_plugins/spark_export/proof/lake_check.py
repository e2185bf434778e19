"""check_lake: every row of a lake against the log, and every record of the log against the lake.

    one version of the table, then the log's end ──▶ plan
    log, range by range    ──▶ damage, sums per block ─┐
    lake, file by file     ──▶ differences, sums ──────┴──▶ offsets of the blocks that differ ──▶ report

The check only reads. It may run beside a broker and beside an export, whose later transactions it does not see.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from reput.errors import ConfigError, StoreError
from reput.store.log.bad_range import BadRange
from reput.store.recovery.check_report import ViewReport
from reput.store.state.identity import read_identity, require_store
from reput.table import LogTable, TableOptions, table_options
from reput_plugins.spark_export.lake import COMMIT_INFO, OFFSET_COLUMN, SELECTION_SETTING, Lake
from reput_plugins.spark_export.lake_continuation import find_cut, find_source, lake_of_store, mixed_exports
from reput_plugins.spark_export.lake_location import LakeLocation, one_line
from reput_plugins.spark_export.lake_sources import all_sources, row_name
from reput_plugins.spark_export.lakes.lake_table import LakeTable
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.options import EXPORT_NAME
from reput_plugins.spark_export.parquet_files import STORE_COLUMN
from reput_plugins.spark_export.proof.block_sums import BlockSums
from reput_plugins.spark_export.proof.file_pass import names_in, pass_file
from reput_plugins.spark_export.proof.findings import Differences, FileFindings
from reput_plugins.spark_export.proof.log_pass import LogFindings, pass_log
from reput_plugins.spark_export.proof.offsets import OffsetFindings, runs_of_blocks, sort_out
from reput_plugins.spark_export.proof.proof_plan import LakeFile, LakePart, ProofPlan, files_of
from reput_plugins.spark_export.proof.report import LakeCheckReport, LakeReport, WatermarkReport
from reput_plugins.spark_export.proof.watermarks import Watermark, read_watermarks
from reput_plugins.spark_export.typed.table_specs import DATE_COLUMN
from reput_plugins.spark_export.typed.typed_folder import dead_letters_of
from reput_plugins.spark_export.typed.typed_lake import is_typed, key_of, lake_like, tags_of

__all__ = ["Runner", "compare_lake", "run_here"]

SPLIT_BYTES = 64 << 20
THREADS_MAX = 4

Progress = Callable[[int, int], None]
Task = TypeVar("Task")
Result = TypeVar("Result")
# Applies a function to each task, anywhere and in any order.
Runner = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def run_here(work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Yield the result of each task, done by threads of this process."""
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), THREADS_MAX), "lake check") as threads:
        yield from threads.map(work, tasks)


def compare_lake(
    store: Path,
    location: LakeLocation,
    *,
    name: str | None = None,
    store_id: str | None = None,
    run: Runner = run_here,
    split_bytes: int = SPLIT_BYTES,
    on_progress: Progress | None = None,
) -> LakeCheckReport:
    """Compare the log of *store* with its rows in the lake.

    Args:
        name: name of the export in the table; None: the table's only export, or the default name if there are several.
        store_id: the store's id in the lake; None: recognise it as an export does.
        run: runs the tasks; by default, threads of this process do.
        split_bytes: bytes of the log that one task verifies.
        on_progress: called at intervals with the checked bytes of log and lake, and their total.

    Raises:
        StoreError: the lake has rows of other stores, and none of this one.
        ConfigError: the table was not written by reput.
    """
    check = LakeCheck(store, location, name, store_id)
    return check.report(run, split_bytes, on_progress or (lambda done, total: None))


class LakeCheck:
    """One check of one lake."""

    def __init__(self, store: Path, location: LakeLocation, name: str | None, store_id: str | None) -> None:
        self.began = time.monotonic()
        require_store(store)
        self.store = store
        self.location = location
        # Read the table before the log, so that the log has everything that the table has; and the dead letters after
        # the table, because each transaction of the table has its dead letters already.
        self.table = open_table(location)
        typed = is_typed(self.table)
        dead_letters = open_table(dead_letters_of(location)) if typed else None
        make = lake_like(self.table) if typed else Lake
        exports = all_sources(self.table)
        self.export_name = name or (next(iter(exports)) if len(exports) == 1 else EXPORT_NAME)
        topics = kept_topics(self.table)
        self.options = table_options(topics=None if topics is None else frozenset(topics), on_corruption="report")
        self.log = LogTable(store, self.options)
        identity = read_identity(store)
        recorded = None if identity is None else identity.store_id
        given = store_id or recorded or self.log.store_id
        lake = lake_of_store(location, self.export_name, store, given, make=make)
        lake.refuse_another(self.table, topics)
        cursors = exports.get(self.export_name, [])
        self.source = find_source(self.table, lake, cursors, self.log, recorded, store_id) if cursors else None
        if self.source is None and exports:
            held = sorted({cursor.store_id for known in exports.values() for cursor in known})
            raise StoreError(
                f"the lake has no rows of this store: lake={location.address} store={store} store_id={recorded} "
                f"lake_store_id={','.join(held)} name={self.export_name}",
                "Give the store's id in the lake with --store-id, or the export with --name.",
            )
        if mixed_exports(self.table):
            raise StoreError(
                f"the lake has rows of several exports, and cannot tell which export wrote them: "
                f"lake={location.address}",
                "Export each store into its own folder.",
            )
        self.lake = lake
        if self.source is not None:
            known = self.source.cursor.store_id
            row_store = row_name(self.table, known, self.export_name)
            self.lake = lake_of_store(location, self.export_name, store, recorded or known, row_store, make)
        self.store_name = self.lake.rows_of(self.table)
        lake_end = self.log.offset_min if self.source is None else self.source.cursor.commit_log_offset
        self.watermarks = [known_watermarks(self.table, self.lake, self.store_name)]
        self.parts = [part_of(self.table, self.lake, lake_end, self.options, self.watermarks[0])]
        self.files = files_of(self.table, 0, self.parts[0])
        if dead_letters is not None:
            dead = lake_of_store(
                dead_letters_of(location),
                self.export_name,
                store,
                self.lake.epochs.store_id,
                make=lake_like(dead_letters),
            )
            cursor = dead.cursor(dead_letters)
            end = lake_end if cursor is None else max(cursor.commit_log_offset, lake_end)
            self.watermarks.append(known_watermarks(dead_letters, dead, self.store_name))
            self.parts.append(part_of(dead_letters, dead, end, self.options, self.watermarks[1]))
            self.files += files_of(dead_letters, 1, self.parts[1])
        self.log_end = self.log.find_end()
        self.offset_min = self.log.segments.offset_min
        self.plan = self.make_plan(exports)

    def make_plan(self, exports: Mapping[str, Sequence[Any]]) -> ProofPlan:
        """Return the plan of the comparison."""
        lake_end = self.offset_min if self.source is None else self.source.cursor.commit_log_offset
        cut = None if self.source is None else find_cut(self.lake, self.source, self.log)
        until = max(lake_end if cut is None else min(cut.commit_log_offset, lake_end), self.offset_min)
        names = {row_name(self.table, cursor.store_id, export) for export, known in exports.items() for cursor in known}
        typed = is_typed(self.table)
        return ProofPlan(
            str(self.store),
            tuple(self.parts),
            self.options,
            self.store_name,
            frozenset(names - {self.store_name or ""}),
            self.offset_min,
            until,
            max(lake_end, until),
            tags_of(self.table) if typed else None,
            typed and bool(key_of(self.table)),
        )

    def report(self, run: Runner, split_bytes: int, on_progress: Progress) -> LakeCheckReport:
        """Run the check, and return its report."""
        plan = self.plan
        files = [file for file in self.files if not file.is_anothers(plan.store_name, plan.other_names)]
        lake_bytes = sum(file.size for file in files)
        total, done = plan.until - plan.offset_min + lake_bytes, 0
        splits = []
        if plan.until > plan.offset_min:
            splits = self.log.splits(plan.offset_min, plan.until, split_bytes=split_bytes)
        log_sums, damage, record_count = BlockSums(), list[BadRange](), 0
        for split, found in run(LogTask(plan), splits):
            log_sums.merge(found.sums)
            damage += found.damage
            record_count += found.record_count
            done += split.until - split.begin
            on_progress(done, total)
        plan = msgspec.structs.replace(plan, damage=tuple(sorted(damage, key=lambda found: found.begin)))
        rows = RowTotals(plan)
        for found in run(FileTask(plan), files):
            rows.add(found)
            done += found.file.size
            on_progress(done, total)
        # Retention may have removed segments since the start of the check.
        offset_min = max(self.log.offset_min, plan.offset_min)
        rows.judge_without_record(offset_min)
        different = [run for run in runs_of_blocks(rows.sums.different(log_sums)) if run[1] > offset_min]
        known = self.known_damage() if different or damage else []
        offsets = OffsetFindings()
        for begin, until in different:
            sort_out(plan, rows.true_files, np.array(sorted(rows.without_record)), known, begin, until, offsets)
        rows.differences.merge(offsets.differences)
        if plan.keyed:
            self.compare_keys(rows.differences)
        return self.summary(plan, rows, offsets, known, record_count, lake_bytes)

    def compare_keys(self, differences: Differences) -> None:
        """Note keys that have several rows of the store."""
        key = list(key_of(self.table))
        own = self.lake.columns.field(STORE_COLUMN) == self.store_name
        offsets = self.lake.columns.field(OFFSET_COLUMN)
        columns = {name: ds.field(name) for name in key} | {OFFSET_COLUMN: offsets}
        try:
            read = [*key, *map(self.lake.columns.name, (STORE_COLUMN, OFFSET_COLUMN))]
            rows = self.table.dataset(read).to_table(columns=columns, filter=own)
        except (OSError, pa.ArrowException) as error:
            # A file of which no column can be read is counted already.
            count = 0 if differences.counts["unreadable"] else 1
            differences.note("unreadable", 0, f"the keys of the table cannot be read: error={one_line(error)}", count)
            return
        found = rows.group_by(key).aggregate([([], "count_all"), (OFFSET_COLUMN, "min")])
        several = found.filter(pc.greater(found["count_all"], 1))
        for row in several.to_pylist():
            count, at = row["count_all"], row[f"{OFFSET_COLUMN}_min"]
            values = " ".join(f"{name}={row[name]}" for name in key)
            text = f"key has several rows: {values} rows={count} commit_log_offset={at}"
            differences.note("doubled", at, text, count - 1)

    def known_damage(self) -> list[BadRange]:
        """Return the ranges that transactions have left out, as far as the table's history still has them."""
        found: list[BadRange] = []
        for entry in self.table.history():
            commit = entry.info.get(COMMIT_INFO)
            if commit and self.lake.is_own(commit):
                found += msgspec.convert(commit.get("damage", []), list[BadRange])
        return sorted(set(found), key=lambda damaged: damaged.begin)

    def summary(
        self,
        plan: ProofPlan,
        rows: RowTotals,
        offsets: OffsetFindings,
        known: Sequence[BadRange],
        record_count: int,
        lake_bytes: int,
    ) -> LakeCheckReport:
        """Return the report."""
        marks = rows.compare_watermarks(self.watermarks)
        counts = rows.differences.counts
        count = sum(counts.values())
        unknown = [found for found in plan.damage if not any(covers(one, found) for one in known)]
        lag = max(self.log_end - max(plan.lake_end, plan.offset_min), 0)
        rows.differences.cut()
        view = ViewReport(
            "different" if count else "behind" if lag else "equal",
            0 if count else lag,
            count,
            [text for _, text in rows.differences.first],
            rows.below_count,
            counts["cut"],
            rows.unverified_count + offsets.left_out,
        )
        seconds = time.monotonic() - self.began
        log_bytes = plan.until - plan.offset_min
        left_out = [one for one in known if one.end > plan.offset_min]
        return LakeCheckReport(
            ok=not count and not unknown,
            store=str(self.store),
            segments=len(self.log.segments.list),
            records=record_count,
            bytes=log_bytes,
            clean_shutdown=not (self.store / "abort").exists(),
            damage=unknown,
            stale=[],
            views={"lake": view},
            notes=list(self.notes(rows, left_out)),
            lake=LakeReport(
                lake=self.location.address,
                table_version=self.table.version(),
                store_name=plan.store_name,
                begin=plan.offset_min,
                until=plan.lake_end,
                records=record_count,
                rows=rows.row_counts[0],
                missing_count=counts["missing"],
                changed_count=counts["changed"],
                doubled_count=counts["doubled"],
                extra_count=counts["extra"],
                cut_count=counts["cut"],
                foreign_count=counts["foreign"],
                hidden_count=counts["hidden"],
                unreadable_count=counts["unreadable"],
                uncheckable_count=rows.below_count,
                unverified_count=rows.unverified_count,
                left_out_count=offsets.left_out,
                missing=offsets.missing,
                left_out=left_out,
                watermarks=marks,
                log_bytes=log_bytes,
                lake_bytes=lake_bytes,
                seconds=round(seconds, 3),
                mb_per_s=round(log_bytes / max(seconds, 1e-9) / 1e6, 1),
                dead_letters=sum(rows.row_counts[1:]),
                replaced_count=offsets.replaced,
            ),
        )

    def notes(self, rows: RowTotals, left_out: Sequence[BadRange]) -> Iterator[str]:
        """Yield further notes for the report."""
        yield "only the lake was compared with the log; `reput check STORE` checks the store's own views"
        if self.plan.keyed:
            yield "a table with a key proves its rows, not that a record without a row was replaced or removed"
        if rows.below_count:
            yield (
                "rows are the only copy of records that retention removed, and cannot be compared: "
                f"rows={rows.below_count}"
            )
        for one in left_out:
            yield f"the lake left out a damaged range: from={one.begin} until={one.end} reason={one.reason!r}"


class LogTask:
    """Verifies one range of the log. Spark sends it to the workers."""

    def __init__(self, plan: ProofPlan) -> None:
        self.plan = plan

    def __call__(self, split: Any) -> tuple[Any, LogFindings]:
        return split, pass_log(self.plan, split.begin, split.until)


class FileTask:
    """Compares one file of the lake. Spark sends it to the workers."""

    def __init__(self, plan: ProofPlan) -> None:
        self.plan = plan

    def __call__(self, file: LakeFile) -> FileFindings:
        return pass_file(self.plan, file)


class RowTotals:
    """The findings about all files together."""

    def __init__(self, plan: ProofPlan) -> None:
        self.plan = plan
        self.sums = BlockSums()
        self.differences = Differences()
        self.without_record: list[int] = []
        self.row_counts = [0] * len(plan.parts)
        self.below_count = self.unverified_count = 0
        self.watermark_rows = [np.zeros(len(part.watermarks), np.int64) for part in plan.parts]
        self.watermark_sums = [np.zeros(len(part.watermarks), np.int64) for part in plan.parts]
        self.true_files: list[LakeFile] = []

    def add(self, found: FileFindings) -> None:
        """Add the findings about one file."""
        self.sums.merge(found.sums)
        self.differences.merge(found.differences)
        self.without_record += found.without_record
        self.row_counts[found.file.part] += found.row_count
        self.below_count += found.below_count
        self.watermark_rows[found.file.part] += found.watermark_rows
        self.watermark_sums[found.file.part] += found.watermark_sums
        if found.offset_min is not None:
            self.true_files.append(
                msgspec.structs.replace(found.file, offset_min=found.offset_min, offset_max=found.offset_max)
            )

    def judge_without_record(self, offset_min: int) -> None:
        """Separate rows without a record from rows whose record is damaged or was removed during the check."""
        offsets = np.array(self.without_record, np.int64)
        below = offsets < offset_min
        damaged = np.zeros(len(offsets), np.bool_)
        for found in self.plan.damage:
            damaged |= (offsets >= found.begin) & (offsets < found.end)
        self.below_count += int(below.sum())
        self.unverified_count += int((damaged & ~below).sum())
        self.differences.note_rows("extra", offsets[~below & ~damaged].tolist(), "row without a record")

    def compare_watermarks(self, watermarks: Sequence[Sequence[Watermark]]) -> WatermarkReport:
        """Compare the sums of the rows with the sums that their transactions recorded. *watermarks*: of each part."""
        wrong = 0
        for marks, row_counts, sums in zip(watermarks, self.watermark_rows, self.watermark_sums, strict=True):
            for mark, rows, crc in zip(marks, row_counts.tolist(), sums.tolist(), strict=True):
                if (mark.rows, mark.crc) != (rows, crc):
                    wrong += 1
                    text = f"rows differ from their watermark: from={mark.begin} until={mark.until} "
                    text += f"rows={rows} watermark_rows={mark.rows} crc={crc} watermark_crc={mark.crc}"
                    self.differences.note("watermark", mark.begin, text)
        found = [mark for marks in watermarks for mark in marks]
        # The dead letters of a typed table may be ahead.
        until = min((marks[-1].until for marks in watermarks if marks), default=None)
        return WatermarkReport(len(found), sum(mark.rows for mark in found), until, wrong)


def covers(known: BadRange, found: BadRange) -> bool:
    """Return whether *known* covers *found*."""
    return known.begin <= found.begin and found.end <= known.end


def known_watermarks(table: LakeTable, lake: Lake, store_name: str | None) -> list[Watermark]:
    """Return the watermarks of the rows that *table* has in its present version."""
    if store_name is None or not lake.has_watermarks:
        return []
    found = read_watermarks(lake.location, store_name)
    return [mark for mark in found if mark.table_version <= table.version()]


def part_of(table: LakeTable, lake: Lake, end: int, options: TableOptions, watermarks: Sequence[Watermark]) -> LakePart:
    """Return one table of a plan; *end* is where it ends.

    Raises:
        ConfigError: another writer has marked rows as deleted, so that the files have other rows than the table.
    """
    marks = table.deleted_row_marks()
    if marks is not None:
        raise ConfigError(
            f"the table has features that a check does not support: lake={lake.location.address} error={marks}",
            "Rewrite the table without them; an export does not need them.",
        )
    present = names_in(table.schema(), lake.columns)
    columns = tuple(name for name in options.row_format.schema().names if name in present)
    folders = table.partition_columns()
    day = next((name for name in ("date", DATE_COLUMN) if name in folders), None)
    bounds = tuple((mark.begin, mark.until) for mark in watermarks)
    return LakePart(lake.location, lake.columns, columns, end, not is_typed(table), day, bounds)


def kept_topics(table: LakeTable) -> list[str] | None:
    """Return the topics that the table keeps, None for all."""
    kept = table.properties().get(SELECTION_SETTING)
    return None if kept is None else kept.split(",")
