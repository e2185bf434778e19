"""Typed tables compared with the log: each together with its dead letters, and those of a folder one after the other.

A typed table has a row or a dead letter for each record of its topics, and the columns of the log in each. These are
compared as those of the table of the log are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reput.errors import ConfigError
from reput.store.log.bad_range import BadRange
from reput.store.recovery.check_report import ViewReport
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.opening import find_table, format_of_folder
from reput_plugins.spark_export.proof.lake_check import compare_lake
from reput_plugins.spark_export.proof.report import LakeCheckReport, LakeReport, TablesCheckReport
from reput_plugins.spark_export.typed.table_specs import DEAD_LETTERS_SUFFIX
from reput_plugins.spark_export.typed.typed_folder import inside, typed_tables
from reput_plugins.spark_export.typed.typed_lake import DEAD_KIND, TABLE_SETTING, is_typed

__all__ = ["compare_any"]


def compare_any(store: Path, location: LakeLocation, **arguments: Any) -> LakeCheckReport | TablesCheckReport:
    """Compare what lies at *location* with the log: its table, a typed table, or all typed tables of a folder.

    Args:
        arguments: as for `compare_lake`.

    Raises:
        ConfigError: the location names dead letters, which are compared with their table only.
    """
    table = find_table(location)
    if table is None:
        places = {name: in_its_format(inside(location, name)) for name in typed_tables(location)}
    elif is_typed(table):
        if table.properties()[TABLE_SETTING] == DEAD_KIND:
            raise ConfigError(
                f"dead letters are compared together with their table: lake={location.address}",
                f"Name the table: {location.address.removesuffix(DEAD_LETTERS_SUFFIX)}",
            )
        places = {location.address.rpartition("/")[2]: location}
    else:
        places = {}
    if not places:
        return compare_lake(store, location, **arguments)
    return joined({name: compare_lake(store, place, **arguments) for name, place in places.items()})


def in_its_format(place: LakeLocation) -> LakeLocation:
    """Return the location of a table in a folder with the format that the folder has."""
    return msgspec.structs.replace(place, table_format=format_of_folder(place) or place.table_format)


def joined(reports: dict[str, LakeCheckReport]) -> TablesCheckReport:
    """Return the reports of several tables as one."""
    views: dict[str, ViewReport] = {}
    tables: dict[str, LakeReport] = {}
    damage: set[BadRange] = set()
    notes: dict[str, None] = {}
    for name, report in reports.items():
        views[name], tables[name] = report.views["lake"], report.lake
        damage |= set(report.damage)
        notes |= dict.fromkeys(report.notes)
    longest = max(reports.values(), key=lambda report: report.bytes)
    return TablesCheckReport(
        ok=all(report.ok for report in reports.values()),
        store=longest.store,
        segments=longest.segments,
        records=longest.records,
        bytes=longest.bytes,
        clean_shutdown=longest.clean_shutdown,
        damage=sorted(damage, key=lambda found: found.begin),
        stale=[],
        views=views,
        notes=list(notes),
        tables=tables,
    )
