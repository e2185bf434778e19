"""`reput rebuild`: rebuilds views from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from reput.cli.terminal.options import (
    ConfigOption,
    EngineOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    settings_of,
)
from reput.cli.terminal.output import Printer
from reput.cli.terminal.progress import progress_bar
from reput.plugin_jobs import LOCAL, find_engine, rebuild_with

if TYPE_CHECKING:
    from reput.process.owner.offline_rebuild import RebuildRow
    from reput.settings import Settings

__all__ = ["EXAMPLE", "rebuild"]

EXAMPLE = "reput send store orders --count 3 && reput rebuild store index"


def rebuild(
    store: StoreArgument,
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW", help="Dispatchers; default: all enabled ones.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            metavar="DIR",
            help="Build in this directory, laid out like a store; default: in the store itself.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also rebuild views outside the store: their dispatchers send the whole log again."
        ),
    ] = False,
    engine: EngineOption = LOCAL,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Rebuild views from the log, each by its dispatcher in its own process.

    Without --target each new view replaces the old one in one step, even while a program puts and reads. With --target
    the store is only read. With --engine spark, Spark's workers build the same bytes.
    """
    from reput.store.state.identity import require_store

    if engine != LOCAL and target is None:
        raise typer.BadParameter(
            f"this engine can only build into another directory, given by --target: --engine={engine}"
        )
    settings = settings_of(store, config, assignments).settings
    require_store(store)
    done_of: dict[str, int] = {}
    printer = Printer(output_format, rebuild_text)
    with progress_bar("rebuild") as update:

        def show(view: str, done: int, total: int) -> None:
            done_of[view] = done
            update(sum(done_of.values()), total * len(done_of))

        if target is not None:
            if engine == LOCAL:
                from functools import partial

                from reput.process.owner.offline_rebuild import rebuild as rebuild_locally

                rebuild_views = partial(rebuild_locally, force=force)
            else:
                rebuild_views = rebuild_with(find_engine(engine))

            wanted = tuple(dict.fromkeys(views or settings.dispatchers))
            done_of.update(dict.fromkeys(wanted, 0))
            for row in rebuild_views(store, wanted, target, settings, on_progress=show):
                printer.row(to_builtins(row))
            return
        for row in rebuild_store(store, tuple(dict.fromkeys(views or ())), settings, show, force=force):
            printer.row(to_builtins(row))


def rebuild_store(
    store: Path,
    views: tuple[str, ...],
    settings: Settings,
    on_progress: Callable[[str, int, int], None],
    *,
    force: bool,
) -> list[RebuildRow]:
    """Rebuild *views*, by default all enabled ones, in the store; open the store if no program has it open.

    Raises:
        ConfigError: a view is unknown, or lies elsewhere and *force* is not set.
    """
    from reput.process.control.control_socket import group_status
    from reput.process.owner.offline_rebuild import rebuild_in_place

    status = group_status(store)
    if status is not None:
        views = views or tuple(row.name for row in status.dispatchers)
        return rebuild_in_place(store, views, force=force, on_progress=on_progress)
    import msgspec

    from reput.embedded.store_engine import StoreEngine
    from reput.process.plugin.catalogue import select_dispatchers
    from reput.process.plugin.external_views import described, refuse_elsewhere

    views = views or settings.dispatchers
    entries = select_dispatchers(views, settings.dispatcher_plugins)
    refuse_elsewhere(described(entries, settings), force=force)
    enabled = tuple(dict.fromkeys((*settings.dispatchers, *views)))
    with StoreEngine(store, msgspec.structs.replace(settings, dispatchers=enabled), "processes"):
        return rebuild_in_place(store, views, force=force, on_progress=on_progress)


def rebuild_text(row: Mapping[str, Any]) -> str:
    """Return the result for one view as text."""
    records = "-" if row["records"] is None else row["records"]
    log = f"{records} records, {row['bytes']} bytes of the log"
    where = ", swapped in" if row["swapped"] else f" to {row['target']}"
    return f"{row['view']}: {log} in {row['seconds']:.2f} s{where}"
