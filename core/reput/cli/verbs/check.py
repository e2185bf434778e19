"""`reput check`: verifies every record, and every view, or a lake, against the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    CatalogOption,
    CatalogTableOption,
    ConfigOption,
    EngineOption,
    FormatOption,
    LakeFormat,
    OutputFormat,
    SetOption,
    StorageOption,
    StoreArgument,
    settings_of,
    storage_options_in,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.plugin_jobs import DELTA_CHECK, LOCAL, find_engine, find_export

__all__ = ["EXAMPLE", "check"]

EXAMPLE = "reput send store orders --count 3 && reput check store"


def check(
    store: StoreArgument,
    engine: EngineOption = LOCAL,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="LAKE",
            help="Compare this table of `reput export`, or this folder of typed tables, with the log, instead of the "
            "store's views.",
        ),
    ] = None,
    lake_format: Annotated[
        LakeFormat | None,
        typer.Option("--lake-format", help="With --lake: the format of its tables. Needed only in an object store."),
    ] = None,
    catalog: CatalogOption = None,
    catalog_table: CatalogTableOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="With --lake: the export's name in the table, if it has several."),
    ] = None,
    store_id: Annotated[
        str | None,
        typer.Option(
            "--store-id",
            metavar="ID",
            help="With --lake: the lake's name for this store, if the lake cannot recognise it.",
        ),
    ] = None,
    storage_options: StorageOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Verify every record of the log, and compare every view with the log. Nothing is changed.

    A view that lags holds a correct prefix. Exit code 1: bytes of the log are damaged, or a view differs.
    With --engine spark the log is verified by Spark's workers; the report is the same.

    With --lake each row of the table is compared with its record, and each record with the table. Exit code 1: they
    differ, or bytes of the log are damaged. Records behind the table's end only make it lag. A typed table is compared
    together with its dead letters.
    """
    if lake is not None:
        compare = find_export(DELTA_CHECK)
        with progress_bar(f"check {lake}") as update:
            found = compare(
                store,
                lake,
                engine=engine,
                name=name,
                store_id=store_id,
                settings=settings_of(store, config, assignments).settings.spark_options,
                storage_options=storage_options_in(storage_options or ()),
                lake_format=None if lake_format is None else lake_format.value,
                catalog=catalog,
                catalog_table=catalog_table,
                on_progress=update,
            )
        Printer(output_format, lake_text).row(to_builtins(found))
        return 0 if found.ok else ANSWER_IS_NO
    for option, given in (
        ("--name", name),
        ("--store-id", store_id),
        ("--lake-format", lake_format),
        ("--catalog", catalog),
        ("--catalog-table", catalog_table),
        ("--storage-option", storage_options),
    ):
        if given:
            raise typer.BadParameter(f"only a lake has it: option={option}; name the lake with --lake")
    if engine == LOCAL:
        from reput.store.check.check import check_store as run
    else:
        run = find_engine(engine).check_store
    settings = settings_of(store, config, assignments).settings
    total = log_size(store)
    with progress_bar(f"check {store}") as update:
        report = run(store, settings, lambda done: update(done, total))
    Printer(output_format, check_text).row(to_builtins(report))
    return 0 if report.ok else ANSWER_IS_NO


def log_size(store: Path) -> int:
    """Return the total size of the log's files, 0 if there are none."""
    sizes = []
    for file in (store / "commitlog").glob("*"):
        # Retention may remove files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return sum(sizes)


def check_text(row: Mapping[str, Any]) -> str:
    """Return the report as text: the log, the views, and finally whether all is well."""
    return "\n".join(check_lines(row))


def check_lines(row: Mapping[str, Any]) -> Iterator[str]:
    closed = "closed cleanly" if row["clean_shutdown"] else "not closed cleanly"
    yield f"log: {row['records']} records in {row['bytes']} bytes of {row['segments']} segments, {closed}"
    yield from finding_lines(row)
    yield verdict(row)


def finding_lines(row: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("damage", "stale"):
        for found in row[kind]:
            size = found["until"] - found["from"]
            yield f"{kind}: from {found['from']} until {found['until']} ({size} bytes): {found['reason']}"
    for name, view in row["views"].items():
        yield f"{name}: {view_text(view)}"
        for difference in view["differences"]:
            yield f"    {difference}"
        more = view["difference_count"] - len(view["differences"])
        if more > 0:
            yield f"    and {more} more"
    for note in row["notes"]:
        yield f"note: {note}"


def verdict(row: Mapping[str, Any]) -> str:
    different = [name for name, view in row["views"].items() if view["state"] == "different"]
    problems = (["damage"] if row["damage"] else []) + different
    return "ok" if row["ok"] else f"NOT OK: {', '.join(problems)}"


def lake_text(row: Mapping[str, Any]) -> str:
    """Return the report on a lake as text: what was compared, what differs, and what it cost."""
    return "\n".join(lake_lines(row))


def lake_lines(row: Mapping[str, Any]) -> Iterator[str]:
    tables = row.get("tables") or {"lake": row["lake"]}
    for name, lake in tables.items():
        yield from table_lines(name, lake)
    yield from finding_lines(row)
    for lake in tables.values():
        yield (
            f"read {lake['log_bytes']} bytes of the log and {lake['lake_bytes']} of the lake in "
            f"{lake['seconds']:.1f} s: {lake['mb_per_s']:.1f} MB/s of the log"
        )
    yield verdict(row)


def table_lines(name: str, lake: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was compared of one table, and its missing rows. A table of the log has the name "lake"."""
    of_store = "" if lake["store_name"] is None else f" of store {lake['store_name']}"
    yield (
        f"log: {lake['records']} records from {lake['from']} until {lake['until']}; "
        f"{name}: {lake['rows']} rows{dead_letters_text(name, lake)}{of_store}, table version {lake['table_version']}"
    )
    marks = lake["watermarks"]
    if marks["count"]:
        yield (
            f"watermarks: {marks['count']} for {marks['rows']} rows until {marks['until']}, "
            f"{marks['difference_count']} of them differ"
        )
    for found in lake["missing"]:
        yield f"missing: from {found['from']} until {found['until']}: {found['records']} records"


def dead_letters_text(name: str, lake: Mapping[str, Any]) -> str:
    """Return what a typed table has beside its rows."""
    if name == "lake":
        return ""
    replaced = f", {lake['replaced_count']} records replaced or removed" if lake["replaced_count"] else ""
    return f" and {lake['dead_letters']} dead letters{replaced}"


def view_text(view: Mapping[str, Any]) -> str:
    """Return state and nonzero counts of one view."""
    state = {"behind": f"behind by {view['behind_bytes']} bytes of the log"}.get(view["state"], view["state"])
    counts = [
        f"{view[f'{name}_count']} {text}"
        for name, text in (
            ("expired", "expired"),
            ("stale", "stale"),
            ("unverified", "without data to compare with"),
        )
        if view[f"{name}_count"]
    ]
    return f"{state} ({', '.join(counts)})" if counts else state
