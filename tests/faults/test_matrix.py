"""The fault matrix runs, and its page agrees with it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from faults import matrix, matrix_bytes, process_rows, small_disk_rows, system_call_rows, table_rows, unit_rows  # noqa: F401
from faults.rows import ROWS, Row
from faults.thread_rows import DEATHS
from source_tree import modules

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
HEAD = "| fault | where | times | afterwards |\n|---|---|---|---|\n"
# Numbers are rounded, so that a few more file calls do not change the page.
STEPS = (200, 100, 50, 20, 10)
STARTED = re.compile(r'(?:\.start|__init__)\(\s*"(reput-[a-z-]+)"')
# Code with its own process, or for a command, which ends with an error if its thread does.
# Nor are these threads of a store: the modules of a broker are loaded by one, and a client's loop runs in another.
# A console is a process of its own, and of the metrics' threads a scraper sees that they answer no more.
# The thread of a master's HA port dies in tests/replication; those of a copy end the following, which says why.
# The death of a lease's thread is the loss of the lease: tests/lease.
OTHERS = (
    *("core/reput/bench/", "core/reput/broker/", "core/reput/cli/", "core/reput/client/", "core/reput/replication/"),
    *("core/reput/console/", "core/reput/lease/", "core/reput/metrics/", "core/reput/telemetry/", "plugins/"),
)


def line_of(row: Row, times: int) -> str:
    """Return the row's line on the page."""
    step = next((step for step in STEPS if times >= step), None)
    return f"| {row.fault} | {row.place} | {times if step is None else f'{step} and more'} | {row.afterwards} |\n"


def write_line(line: str) -> None:
    """Put *line* into the page, in place of the line with the same beginning, or at the table's end."""
    page = PAGE.read_text()
    key = "|".join(line.split("|")[:3])
    lines = page.splitlines(keepends=True)
    at = next((number for number, old in enumerate(lines) if old.startswith(key + "|")), None)
    if at is None:
        lines.append(line)
    else:
        lines[at] = line
    PAGE.write_text("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, marks=row.marks, id=row.run.__name__) for row in ROWS])
def test_a_fault_breaks_no_promise(row: Row, memory_directory: Path):
    """Acknowledged messages exist, the views agree with the log, and the page has the number of tries."""
    times = row.run(memory_directory)
    line = line_of(row, times)
    print(times, line)
    assert times > 0
    if os.environ.get("REPUT_WRITE_PAGES"):
        write_line(line)
    assert system_call_rows.ALL_CALLS or line in PAGE.read_text(), (
        "REPUT_WRITE_PAGES=1 pytest tests/faults writes the page anew"
    )


def test_the_page_has_the_rows_that_run_and_no_others():
    """In order."""
    page = PAGE.read_text()
    table = page[page.index(HEAD) + len(HEAD) :].splitlines()
    assert [tuple(line.split(" | ")[:2]) for line in table] == [(f"| {row.fault}", row.place) for row in ROWS]


def test_each_thread_of_a_store_is_tried_with_an_error():
    """A new thread must be added to the fault matrix, and started where its death is noticed."""
    sources = [module for module in modules() if not module.source.startswith(OTHERS)]
    started = {name for module in sources for name in STARTED.findall(module.path.read_text())}
    assert started == {death.thread for death in DEATHS}
    makers = [module.source for module in sources if "threading.Thread" in dict(module.names)]
    assert makers == ["core/reput/store/service/threads.py"]
