"""`reput demo`: demonstrates the whole product once."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import FormatOption, OutputFormat, whole_number
from reput.cli.terminal.output import Printer, table_text, write_line
from reput.errors import ConfigError

if TYPE_CHECKING:
    from rich.live import Live

    from reput.demo.demo import Check, DemoReport
    from reput.process.control.dispatcher_row import DispatcherRow

__all__ = ["EXAMPLE", "demo"]

EXAMPLE = "reput demo --records 10000 --no-spark"
MARKS = {True: "ok     ", False: "FAILED ", None: "skipped"}
COLUMNS = ("name", "pid", "state", "progress", "lag_bytes", "lag_messages", "restart_count")


def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="D", help="An empty folder to work in; default: a temporary one."),
    ] = None,
    records: Annotated[
        int, typer.Option("--records", metavar="N", parser=whole_number(1000), help="Messages of the scratch store.")
    ] = 100_000,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Skip the export with Spark.")] = False,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show all of reput in about a minute, on a store that RocketMQ wrote and on a scratch store.

    Every claim is checked. Exit code 1: a claim did not hold.
    """
    from reput.demo.demo import run_demo

    folder = scratch_folder(directory)
    shown = Shown(output_format)
    try:
        report = run_demo(folder, shown, records=records, spark=not no_spark)
    finally:
        shown.close()
    if not shown.printer.is_json:
        write_line(ending(report))
    return 0 if report.ok else ANSWER_IS_NO


def scratch_folder(directory: Path | None) -> Path:
    """Return an empty folder to work in.

    Raises:
        ConfigError: the given folder is not empty.
    """
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="reput-demo-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"the folder for the demo is not empty: directory={directory}", "Name a new or empty folder.")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


class Shown:
    """Shows a demo: claims on stdout, and on a terminal the dispatchers' live progress on stderr."""

    def __init__(self, output_format: OutputFormat) -> None:
        self.printer = Printer(output_format, check_text)
        self.live: Live | None = None

    def step(self, title: str) -> None:
        """Print the title of the next part."""
        self.close()
        if not self.printer.is_json:
            write_line(f"\n{title}")
            sys.stdout.flush()

    def progress(self, appended: int, rows: Sequence[DispatcherRow]) -> None:
        """Show that the log ends at *appended*, and the dispatchers' positions."""
        if not sys.stderr.isatty():
            return
        if self.live is None:
            self.live = start_live()
        text = table_text([asdict(row) for row in rows], COLUMNS)
        self.live.update(f"log: {appended:,} bytes appended\n{text}", refresh=True)

    def result(self, check: Check) -> None:
        """Print the result of one claim."""
        self.close()
        self.printer.row(asdict(check))
        sys.stdout.flush()

    def close(self) -> None:
        """Stop updating the live table."""
        if self.live is not None:
            self.live.stop()
            self.live = None


def start_live() -> Live:
    """Return a live table on stderr."""
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False)
    live.start()
    return live


def check_text(row: Mapping[str, Any]) -> str:
    """Return one claim as text."""
    return f"  {MARKS[row['held']]}  {row['name']}: {row['detail']}"


def ending(report: DemoReport) -> str:
    """Return the summary, next steps, and in the last line the skipped parts."""
    held = sum(check.held is True for check in report.checks)
    tried = sum(check.held is not None for check in report.checks)
    store = report.directory / "store"
    lines = [
        "",
        f"{held} of {tried} claims held. Continue with the store:",
        f"  reput status {store}",
        f"  reput dump {store} --count 5",
        f"  reput query {store} orders order-7",
    ]
    lines += [f"skipped: {check.name}: {check.detail}" for check in report.checks if check.held is None]
    return "\n".join(lines)
