"""The table of brokers under RocketMQ's own client is made from a kept run."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.brokers import PUSH, SYNC_ONE, broker_rows, main
from benchmarks.comparison import Line
from benchmarks.timed_commands import TimedRun

MACHINE = {"processor": "P", "cores": 2, "python": "3.11", "file_system": "ext4", "reput": "1"}


def line(who: str, number: int, command: tuple[str, ...], **report: Any) -> Line:
    """Return the line of a measurement."""
    return Line(who=who, part="brokers", round=number, command=list(command), run=TimedRun([report], 1.0, 0.0))


LINES = [
    Line(machine=MACHINE),
    *(
        line(who, number, SYNC_ONE, messages_per_s=rate, send_p50_us=1_000_000 / rate)
        for who, rates in {"reput": (2_000, 4_000), "5.3.3": (1_000, 1_000), "5.5.0": (2_000, 2_000)}.items()
        for number, rate in enumerate(rates, 1)
    ),
    line("reput", 1, ("memory",), anonymous_mib=121),
    line("5.5.0", 1, PUSH, messages_per_s=1),
]


def test_a_figure_of_each_broker_stands_in_one_row():
    """With the median of the rounds, and the ratio to the better RocketMQ. What reput lacks is no row."""
    one, p50, memory = broker_rows(LINES)
    assert (one.what, one.figure, one.peers, one.ratio) == (
        "synchronous, 1 thread",
        3_000,
        {"5.3.3": 1_000, "5.5.0": 2_000},
        1.5,
    )
    assert (one.ratio_least, one.ratio_most, one.kept) == (1.0, 2.0, True)
    assert (p50.what, p50.ratio, p50.kept) == ("the same, p50", 0.75, None)
    assert (memory.asked, memory.kept) == ("≤ 120", False)


def test_the_table_is_printed_again(tmp_path, capsys):
    """In each format; a failed measurement is told, and is an exit code of 1."""
    kept = tmp_path / "run.jsonl"
    kept.write_bytes(msgspec.json.Encoder().encode_lines(LINES))
    assert main(["--from", str(kept), "--format", "markdown"]) == 0
    assert "| synchronous, 1 thread | ≥ 1.2 × RocketMQ | 1/s | 3,000 |" in capsys.readouterr().out
    failed = Line(who="5.5.0", part="brokers", round=1, command=["push"], run=TimedRun([], 1.0, 0.0, "exit_code=1"))
    kept.write_bytes(msgspec.json.Encoder().encode_lines([*LINES, failed]))
    assert main(["--from", str(kept)]) == 1
    assert "5.5.0 push: exit_code=1" in capsys.readouterr().err
