"""`reput doctor`: reports problems of this machine that affect reput."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import FormatOption, OutputFormat, takes_settings
from reput.cli.terminal.output import Printer

__all__ = ["EXAMPLE", "doctor"]

EXAMPLE = "reput doctor"
MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


@takes_settings
def doctor(
    store: Annotated[Path | None, typer.Argument(metavar="STORE", help="Also examine this store.")] = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Check limits, disk, Java for Spark, and that plugins load; report each problem with advice.

    Nothing is changed. Exit code 1: there is a problem; warnings do not count.
    """
    from reput.cli.target.findings import machine_findings, store_findings

    printer = Printer(output_format, finding_text)
    problems = 0
    for finding in (*(store_findings(store) if store else ()), *machine_findings()):
        printer.row(asdict(finding))
        problems += finding.state == "problem"
    return ANSWER_IS_NO if problems else 0


def finding_text(row: Mapping[str, Any]) -> str:
    """Return a finding as text, with its advice on a second line."""
    text = f"{MARKS[row['state']]}  {row['name']}: {row['finding']}"
    return f"{text}\n         {row['advice']}" if row["advice"] else text
