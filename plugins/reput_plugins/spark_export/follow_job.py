"""follow: keep a lake up to date until the caller stops, whether or not another process writes the store.

`follow` does the work of the dispatcher, but has no host that restarts it. A failure ends it with an error, and the
next call continues where the table ends. Stopping at any moment neither loses nor repeats a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.store.state.identity import require_store
from reput_plugins.spark_export import spark_job
from reput_plugins.spark_export.commit_pacer import COMMIT_BYTES, COMPACT_INTERVAL_MS, CommitPacer
from reput_plugins.spark_export.export_job import open_target, refuse_other_settings
from reput_plugins.spark_export.options import EXPORT_NAME, ExportRequest
from reput_plugins.spark_export.requirements import require_format, require_packages
from reput_plugins.spark_export.spark_job import Progress

if TYPE_CHECKING:
    from reput.table import BadRange
    from reput_plugins.spark_export.lake_sink import SinkPlan
    from reput_plugins.spark_export.typed.typed_job import TableReport
    from reput_plugins.spark_export.typed.typed_sink import TypedPlan

__all__ = ["FollowRow", "follow"]


class FollowRow(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """One transaction of the lake: *records* in *files* of *bytes*, for the log from *begin* to *until*.

    *seconds* count from the previous transaction, or from the call. *lag_bytes* and *lag_messages* of the log are
    durable but not yet in the lake, and *lag_seconds* is the age of the oldest of these messages. More than 64 MiB
    of messages are not counted but estimated. *damage* lists the ranges that were skipped with
    ``on_corruption="report"``.
    """

    begin: int
    until: int
    records: int
    files: int
    bytes: int
    seconds: float
    table_version: int
    lag_bytes: int
    lag_messages: int
    lag_seconds: float
    damage: tuple[BadRange, ...] = ()
    tables: tuple[TableReport, ...] = ()


def follow(
    store: Path | str,
    lake: Path | str,
    *,
    tables: Path | str | Mapping[str, Any] | None = None,
    topics: Iterable[str] | None = None,
    name: str = EXPORT_NAME,
    settings: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    interval_ms: int = 10_000,
    fail_on_data_loss: bool = True,
    on_corruption: str = "fail",
    store_id: str | None = None,
    accept_truncation: bool = False,
    lake_format: str = "delta",
    catalog: str | None = None,
    catalog_table: str | None = None,
    on_progress: Progress | None = None,
) -> Iterator[FollowRow]:
    """Bring the table *lake* up to the durable end of the log of *store* and keep it there; yield each commit.

    The iterator never ends by itself; close it to stop.

    Args:
        tables, topics, name, settings, storage_options, fail_on_data_loss, on_corruption, store_id,
            accept_truncation, lake_format, catalog, catalog_table: as for `export`.
        interval_ms: minimum time between commits, unless 64 MiB of the log are waiting.
        on_progress: called a few times a second with the log bytes exported since the call, and the total known so far.

    Raises:
        DispatcherError: Java or a package is missing, Spark fails, or another exporter keeps this lake.
        ConfigError: *lake* was not written by reput, or keeps other topics; the store does not have one of *topics*; a
            setting is not a Spark setting.
        StoreError: *store* is not a store, is damaged, or is not the one that the lake holds; the lake has rows that
            the log contradicts, and their deletion was not accepted.
    """
    refuse_other_settings(settings or {})
    require_store(Path(store))
    require_packages()
    require_format(lake_format)
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export import spark_session
    from reput_plugins.spark_export.maintenance import VACUUM_HOURS

    began = time.monotonic()
    request = ExportRequest(
        store=Path(store).absolute(),
        lake=lake,
        tables=tables,
        topics=None if topics is None else tuple(topics),
        name=name,
        storage_options=storage_options,
        fail_on_data_loss=fail_on_data_loss,
        on_corruption=on_corruption,
        store_id=store_id,
        accept_truncation=accept_truncation,
        lake_format=lake_format,
        catalog=catalog,
        catalog_table=catalog_table,
    )
    target = open_target(request, compact_interval_ms=COMPACT_INTERVAL_MS, vacuum_hours=VACUUM_HOURS)
    pacer = CommitPacer(target.log, target.begin(), interval_ms, on_progress)
    with spark_session.spark_session(settings or {}, f"reput export {request.store}") as session:

        def run(plan: SinkPlan | TypedPlan, low: int, high: int) -> None:
            spark_job.run_job(session, plan, low, high, None, split_bytes=COMMIT_BYTES)

        while True:
            begin, until = pacer.next_range()
            added = target.export(begin, until, run)
            lag = pacer.committed(until)
            for one in added:
                now = time.monotonic()
                yield FollowRow(
                    one.begin,
                    one.until,
                    one.records,
                    one.files,
                    one.bytes,
                    round(now - began, 3),
                    one.table_version,
                    lag.byte_count,
                    lag.messages,
                    lag.seconds,
                    one.damage,
                    one.tables,
                )
                began = now
            for maintenance in target.maintenances:
                maintenance.after_commit(lambda: None)
