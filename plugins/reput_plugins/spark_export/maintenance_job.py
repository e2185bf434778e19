"""optimize_lake and vacuum_lake: the maintenance that a followed lake does by itself, as commands of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from reput.errors import ConfigError
from reput_plugins.spark_export.requirements import require_format, require_packages

__all__ = ["OptimizedTable", "VacuumedTable", "optimize_lake", "vacuum_lake"]

VACUUM_HOURS = 168
FOREIGN = "not written by reput"


class OptimizedTable(msgspec.Struct, frozen=True):
    """The data files of one table, before its small files were merged and after.

    *skipped* says why a table was left alone.
    """

    table: str
    files_before: int = 0
    bytes_before: int = 0
    files: int = 0
    bytes: int = 0
    table_version: int = 0
    skipped: str | None = None


class VacuumedTable(msgspec.Struct, frozen=True):
    """The files of one table that are removed, and the versions that cannot be read without them.

    Attributes:
        files, bytes: number and size of the removed files.
        versions_lost: ranges (first, last) of versions that can be read now, and cannot afterwards.
        readable_from_version: every version from this one on can still be read.
        readable_from_timestamp: when that version was made, in ms since 1970; None: unknown.
        dry_run: nothing is removed.
        skipped: why the table was left alone.
    """

    table: str
    files: int = 0
    bytes: int = 0
    versions_lost: tuple[tuple[int, int], ...] = ()
    readable_from_version: int | None = None
    readable_from_timestamp: int | None = None
    dry_run: bool = False
    skipped: str | None = None


def optimize_lake(
    lake: Path | str,
    *,
    table: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    lake_format: str = "delta",
    catalog: str | None = None,
    catalog_table: str | None = None,
    on_table: Callable[[OptimizedTable], None] = lambda report: None,
) -> list[OptimizedTable]:
    """Merge the small files of a lake, including those of the present day. The rows stay the same.

    It may run beside exports and readers, because the replaced files stay on disk; `vacuum_lake` removes them.

    Args:
        lake: the table of the log, or a folder of typed tables.
        table: name of one typed table, which is optimized together with its dead letters; None: every table.
        on_table: called with the report of each table as soon as it is done.

    Raises:
        DispatcherError: a package is missing, or the lake cannot be read or written.
        ConfigError: there is no such table, or reput did not write it.
    """
    require_packages()
    require_format(lake_format)
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export.kept_tables import kept_tables
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.lakes.opening import open_table
    from reput_plugins.spark_export.maintenance import Maintenance

    location = LakeLocation.of(
        lake, storage_options, lake_format=lake_format, catalog=catalog, catalog_table=catalog_table
    )
    reports = []
    for kept in kept_tables(location, table):
        report = OptimizedTable(kept.name, skipped=FOREIGN)
        if not kept.foreign:
            before = open_table(kept.location).files()
            maintenance = Maintenance(kept.location, interval_ms=0, vacuum_hours=0, date_column=kept.date_column)
            maintenance.merge(lambda: None, all_closed=True)
            found = open_table(kept.location)
            after = found.files()
            report = OptimizedTable(
                kept.name,
                len(before),
                sum(file.size for file in before),
                len(after),
                sum(file.size for file in after),
                found.version(),
            )
        on_table(report)
        reports.append(report)
    return reports


def vacuum_lake(
    lake: Path | str,
    *,
    table: str | None = None,
    hours: int = VACUUM_HOURS,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    lake_format: str = "delta",
    catalog: str | None = None,
    catalog_table: str | None = None,
    on_table: Callable[[VacuumedTable], None] = lambda report: None,
) -> list[VacuumedTable]:
    """Remove files that no current row needs: files that merges and cuts have replaced, and files of failed attempts.

    Only files that reput wrote are removed, and only in tables that reput made.

    Args:
        lake: the table of the log, or a folder of typed tables.
        table: name of one typed table, which is vacuumed together with its dead letters; None: every table.
        hours: age from which a file is removed; at least 1, because a running export has files that the table does not
            name yet.
        dry_run: remove nothing.
        on_table: called with the report of each table before its first file is removed.

    Raises:
        DispatcherError: a package is missing, or the lake cannot be read or written.
        ConfigError: *hours* is too small, there is no such table, or reput did not write it.
    """
    if hours < 1:
        raise ConfigError(
            f"files of a running export would be removed: hours={hours} hours_min=1", "Give at least 1 hour."
        )
    require_packages()
    require_format(lake_format)
    # Imported after the check, which reports missing packages with a clear message.
    from reput_plugins.spark_export.kept_tables import file_sizes, kept_tables
    from reput_plugins.spark_export.lake_location import LakeLocation
    from reput_plugins.spark_export.lakes.opening import open_table
    from reput_plugins.spark_export.maintenance import Maintenance

    location = LakeLocation.of(
        lake, storage_options, lake_format=lake_format, catalog=catalog, catalog_table=catalog_table
    )
    reports = []
    for kept in kept_tables(location, table):
        report, unused = VacuumedTable(kept.name, dry_run=dry_run, skipped=FOREIGN), []
        maintenance = Maintenance(kept.location, interval_ms=0, vacuum_hours=hours)
        if not kept.foreign:
            found = open_table(kept.location)
            unused = maintenance.unused_files(found)
            lost, oldest, made = [], None, None
            whole = True
            for version in found.versions(unused):
                whole = whole and version.stays
                if whole:
                    oldest, made = version.version, version.timestamp_ms
                if version.readable and not version.stays:
                    lost.append(version.version)
            size = sum(file_sizes(kept.location, unused))
            report = VacuumedTable(kept.name, len(unused), size, ranges(lost), oldest, made, dry_run)
        on_table(report)
        reports.append(report)
        if not dry_run:
            maintenance.remove(unused)
    return reports


def ranges(versions: list[int]) -> tuple[tuple[int, int], ...]:
    """Return ranges (first, last), oldest first, of *versions*, which are newest first."""
    found: list[tuple[int, int]] = []
    for version in reversed(versions):
        if found and found[-1][1] == version - 1:
            found[-1] = (found[-1][0], version)
        else:
            found.append((version, version))
    return tuple(found)
