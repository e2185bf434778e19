"""reput beside others: the order of commands, the table, and a machine without RocketMQ.

A program that prints recorded output of the real one replaces RocketMQ.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.beside import main, measure_beside, runs_in_order
from benchmarks.comparison import WITHOUT_KERNEL, Line, failed_runs, notes_of, read_lines, rows_of
from benchmarks.formats import table_rows
from benchmarks.rocketmq_peer import Peer
from benchmarks.timed_commands import TimedRun, run_command
from command_line import run_reput_process
from reput.kernel import kernel_version
from source_tree import ROOT

# Printed for 5.3.3 by `peer store-read --count 600000 --keys 2`, without unused fields.
RECORDED = """\
{"measurement": "store-read-sequential", "batch": 32, "messages_per_s": 3400000, "copy": "none"}
{"measurement": "store-read-sequential", "batch": 32, "messages_per_s": 1250000, "copy": "heap"}
{"measurement": "store-read-random", "reads": 100000, "get_p50_us": 1.041, "get_p99_us": 2.5}
{"measurement": "store-query-key", "index_entries": 1200000, "found": 50000, "query_p50_us": 4.4}
"""
FAKE = """\
#!/bin/sh
case "$*" in
    "build --version 4.9.7") echo "no such artifact" >&2; exit 1 ;;
    build*) ;;
    *"--version 5.3.3"* | *"--version 5.5.0"*) cat "$(dirname "$0")/recorded" ;;
    *) exit 2 ;;
esac
"""


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """Return the folder of a program that replaces RocketMQ 5.3.3 and 5.5.0, and cannot be built for 4.9.7."""
    folder = tmp_path / "peer"
    folder.mkdir()
    (folder / "recorded").write_text(RECORDED)
    (folder / "peer").write_text(FAKE)
    (folder / "peer").chmod(0o755)
    return folder


@pytest.mark.processes
def test_both_are_measured_in_turns(peer, tmp_path, capsys):
    """The table has goals beside the results of both; a version that cannot be built is omitted with a reason."""
    out, scratch = tmp_path / "run.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    command = ["--peer", str(peer), "--quick", "--only", "read", "--rounds", "1", "--out", str(out)]
    assert main([*command, "--directory", str(scratch), "--format", "json"]) == 0
    said = capsys.readouterr()
    rows = {row["what"]: row for row in map(json.loads, said.out.splitlines())}
    in_order = rows["32 at a time, in order"]
    others = [WITHOUT_KERNEL, "SQLite"] if kernel_version() else ["SQLite"]
    assert in_order["peers"].keys() == {"5.3.3", "5.5.0", *others}
    assert {in_order["peers"][version] for version in ("5.3.3", "5.5.0")} == {1_250_000}
    assert in_order["ratio"] == pytest.approx(in_order["figure"] / 1_250_000)
    assert rows["by key, p50"]["peers"]["5.5.0"] == 4.4
    assert "version=4.9.7 exit_code=1 said='no such artifact'" in said.err
    assert [line.who for line in read_lines(out)[1:]] == ["reput", *others, "5.3.3", "5.5.0"]
    assert list(scratch.iterdir()) == []
    # The table can be printed again from the kept file.
    assert main(["--from", str(out)]) == 0
    again = capsys.readouterr()
    assert "32 at a time, in order" in again.out
    assert "version=4.9.7" in again.err


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [(None, "--peer names no program"), (Path("nowhere"), "the program is missing: path=nowhere")],
)
def test_a_run_without_rocketmq_says_so(peer, sentence, tmp_path):
    """The run continues."""
    said: list[str] = []
    measure_beside(tmp_path / "run.jsonl", peer=peer, parts=(), say=said.append)
    (line,) = read_lines(tmp_path / "run.jsonl")
    assert line.notes == said
    assert sentence in said[0]
    assert said[1:] == (
        [] if kernel_version() else ["The kernel is off or not installed: reput is measured without it."]
    )


def rebuild_lines(of: dict[str, list[int]], **figures: object) -> list[Line]:
    """Return lines of rebuilds: by program, the records per second of each round."""
    lines = []
    for who, rates in of.items():
        for number, rate in enumerate(rates, 1):
            report = (
                {"bench": "rebuild"} if who == "reput" else {"measurement": "store-dispatch-rebuild", "complete": True}
            )
            run = TimedRun([report | figures | {"records_per_s": rate}], 1.0, 0.05 * number)
            lines.append(Line(who=who, part="rebuild", round=number, run=run))
    return lines


def test_the_ratio_is_to_the_better_version():
    """It uses the medians over the rounds, with their range."""
    lines = rebuild_lines({"reput": [300], "5.3.3": [100], "4.9.7": [200]}, queues=1000)
    for line in lines:
        assert line.run is not None
        line.run.reports[0] |= {} if line.who == "reput" else {"topics": 250, "queues": 4}
    (row,) = rows_of(lines)
    assert (row.what, row.ratio, row.kept) == ("rebuild, 1,000 queues", 1.5, True)


def test_a_goal_may_be_of_one_version():
    """Other versions are shown beside it."""
    lines = rebuild_lines(
        {"reput": [90, 110, 120], "5.3.3": [100, 100, 100], "4.9.7": [200, 200, 200]}, queues=1, topics=1
    )
    (row,) = rows_of(lines)
    assert row.peers == {"4.9.7": 200, "5.3.3": 100}
    assert (row.figure, row.least, row.most) == (110, 90, 120)
    assert (row.ratio, row.ratio_least, row.ratio_most) == (1.1, 0.9, 1.2)
    assert row.kept is True
    assert row.other_load_cores == pytest.approx(0.15)
    (shown,) = table_rows([row])
    assert (shown["asked"], shown["ratio"], shown["ratios"], shown["kept"]) == (
        "≥ 1 × RocketMQ 5.3.3",
        "1.10",
        "0.90-1.20",
        "yes",
    )


@pytest.mark.parametrize("others", [{}, {"SQLite": [30]}])
def test_a_multiple_of_what_was_not_measured_is_not_told(others):
    """Neither met nor missed: goals are multiples of RocketMQ's figures, not of others."""
    (row,) = rows_of(rebuild_lines({"reput": [90], **others}, queues=1))
    assert (row.ratio, row.kept) == (None, None)


def reports(who: str, part: str, *found: dict[str, Any]) -> Line:
    """Return the line of a command that printed *found*."""
    return Line(who=who, part=part, round=1, run=TimedRun(list(found), 1.0, 0.0))


def test_each_size_of_body_has_its_rows():
    """RocketMQ's figure of the same size stands beside it. Goals are for bodies of 1 KiB."""
    lines = [
        reports(
            "5.5.0",
            "sync",
            *(
                {
                    "measurement": "store-append",
                    "flush": "sync",
                    "mode": "put",
                    "threads": 64,
                    "body": body,
                    "messages_per_s": body,
                }
                for body in (128, 1024)
            ),
        ),
        *(
            reports("reput", "sync", {"bench": "sync", "body_size": body, "put": {"threads": 64, "per_s": 2 * body}})
            for body in (1024, 128, 16_384)
        ),
    ]
    rows = {row.what: row for row in rows_of(lines)}
    assert list(rows) == ["put to disk, 64 threads" + size for size in ("", ", 128 B", ", 16 KiB")]
    assert [row.peers for row in rows.values()] == [{"5.5.0": 1024}, {"5.5.0": 128}, {}]
    assert [row.asked for row in rows.values()] == ["≥ 0.8 × RocketMQ", "", ""]


def test_larger_bodies_are_fewer():
    """A run of another size keeps its bytes, and leaves out what has no such size."""
    program = Peer(Path("peer"), ["5.5.0"], Path(), Path())
    rate = ["--rate", "1000", "--seconds", "10", "--warmup", "3"]
    lines = list(runs_in_order(program, ["append", "open"], (1024, 128, 16_384), 1, quick=False))
    assert [line.command for line in lines if line.who == "5.5.0"] == [
        ["store-append", "--threads", "1", "--count", "1000000", "--seconds", "8"],
        ["store-dispatch", "--mode", "latency", "--queues", "1", *rate],
        ["store-append", "--threads", "1", "--count", "1000000", "--seconds", "8", "--body", "128"],
        ["store-append", "--threads", "1", "--count", "62500", "--seconds", "8", "--body", "16384"],
        ["open-time", "--segments", "4", "--segment-mib", "256"],
    ]
    sizes = [line.command[-1] for line in lines if line.who == "SQLite"]
    assert sizes == ["10", "128", "16384"]


def test_reput_without_its_kernel_is_no_rival():
    """Nor is it RocketMQ. Where RocketMQ has no such figure, the ratio is to the best of the others."""
    report = {"bench": "clients", "synchronous": False}
    lines = [
        reports(who, "clients", report | {"aput": {"per_s": rate}})
        for who, rate in {"reput": 60, WITHOUT_KERNEL: 50, "NATS": 30, "Redis": 20}.items()
    ]
    (row,) = rows_of(lines)
    assert (row.what, row.ratio) == ("broker: puts, 256 in flight", 2)
    assert list(table_rows([row])[0])[3:7] == [WITHOUT_KERNEL, "NATS", "Redis", "ratio"]


def test_what_is_left_out_is_a_note():
    """It is no failure, and no figure."""
    left_out = {"bench": "clients", "synchronous": True, "left_out": "Redis is not measured: its server is missing"}
    lines = [reports("Redis", "clients", left_out), reports("Redis", "clients", left_out)]
    assert notes_of(lines) == [left_out["left_out"]]
    assert list(failed_runs(lines)) == rows_of(lines) == []


@pytest.mark.parametrize(
    ("waiting", "late_us", "what", "asked", "kept"),
    [
        (100_000, 50_000.0, "delivered late beside 100,000 that wait, max", "≤ 50", True),
        (100_000, 50_001.0, "delivered late beside 100,000 that wait, max", "≤ 50", False),
        # There is no goal for other numbers.
        (1_000, 60_000.0, "delivered late, max", "", None),
    ],
)
def test_how_late_delayed_messages_come_is_told(waiting, late_us, what, asked, kept):
    """The goal applies only to the number of waiting messages for which it was set."""
    report = {"bench": "consume", "delayed_waiting": waiting, "delivered_late": {"max_us": late_us}}
    (row,) = rows_of([Line(who="reput", part="consume", round=1, run=TimedRun([report], 1.0, 0.0))])
    assert (row.what, row.asked, row.kept, row.figure) == (what, asked, kept, late_us / 1000)


def is_running(process: Path) -> bool:
    """Whether the folder's process exists and is not a zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        # It may also end between the opening and the reading of the file: a ProcessLookupError.
        return False


@pytest.mark.processes
def test_a_turn_that_hangs_is_ended(tmp_path):
    """With all its children, and the next one runs."""
    pid, seconds = tmp_path / "pid", 1
    pid.touch()
    while not pid.read_text():
        # On a busy machine it may not have started a child yet.
        run = run_command(["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"], float(seconds))
        assert run.failed == f"timeout_s={seconds}"
        seconds *= 2
    process = Path("/proc") / pid.read_text().strip()
    deadline = time.monotonic() + 30
    while is_running(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_turn_that_fails_says_how(tmp_path):
    """Its earlier output is kept."""
    program = (
        "import sys; print('{\"figure\": 1}', flush=True); print('a', 'b', sep=chr(10), file=sys.stderr); sys.exit(3)"
    )
    run = run_command([sys.executable, "-c", program], 60, errors=tmp_path / "log")
    assert run.reports == [{"figure": 1}]
    assert run.failed == "exit_code=3 said='a / b'"
    line = Line(who="reput", part="read", round=2, command=["read"], run=run)
    assert list(failed_runs([line])) == ["round 2, read: reput read: exit_code=3 said='a / b'"]
    assert run_command([str(tmp_path / "nothing")], 1.0).failed == "error=No such file or directory"


def test_an_unknown_part_is_refused(capsys):
    """The error names it; the same holds for a missing file of a kept run."""
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "swim"])
    assert "'swim'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--from", "nowhere"])
    assert "path=nowhere" in capsys.readouterr().err


@pytest.mark.processes
def test_the_command_line_runs_it_in_a_checkout(tmp_path, monkeypatch):
    """`reput bench beside` passes its options on; outside a checkout it says where to run it."""
    measure_beside(tmp_path / "run.jsonl", parts=())
    monkeypatch.chdir(ROOT)
    shown = run_reput_process("bench", "beside", "--from", tmp_path / "run.jsonl")
    assert shown.code == 0, shown.stderr
    assert "reput: RocketMQ is not measured" in shown.stderr
