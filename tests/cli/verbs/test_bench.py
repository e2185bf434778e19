"""`reput bench`: each measurement runs, small, and prints one JSON object with the machine's facts."""

from __future__ import annotations

import json
import sys

import pytest

from reput.bench import growth
from reput.bench.figures import FIGURES, look_up
from reput.cli import main
from reput.cli.verbs import bench


def figures_left_out(report):
    """Return the figures without a number in the text tables."""
    return [figure.what for figure in FIGURES[report["bench"]] if look_up(report, figure.path) is None]


@pytest.mark.processes
@pytest.mark.parametrize(
    "name", ["append", "read", *(pytest.param(name, marks=pytest.mark.long) for name in ("rebuild", "sync"))]
)
def test_a_measurement_of_a_scratch_store(name, tmp_path, monkeypatch, capsys):
    """It is removed afterwards."""
    module = __import__(f"reput.bench.{name}", fromlist=[name])
    if name == "append":
        # The open loop runs for seconds, which is too long for a test.
        monkeypatch.setattr(module, "put_to_readable", lambda *arguments: {})
    code = main(["bench", name, "--directory", str(tmp_path), "--count", "640", "--size", "10"])
    assert code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bench"] == name
    assert report["machine"]["cores"] >= 1
    assert all("to readable" in what for what in figures_left_out(report))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.processes
def test_dispatching_is_measured(tmp_path, monkeypatch, capsys):
    """Its scratch stores and its plugins are removed afterwards."""
    module = __import__("reput.bench.dispatch", fromlist=["dispatch"])
    monkeypatch.setattr(module, "put_to_readable", lambda *arguments: {})
    monkeypatch.setattr(module, "PAUSED_COUNTS", (1, 2))
    before = list(sys.path)
    command = ["bench", "dispatch", "--directory", str(tmp_path), "--count", "40", "--size", "10", "--restarts", "1"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["dispatchers"] for row in report["paused"]["attached"]] == [1, 2]
    assert report["backstop"]["found_work"] == report["backstop"]["found_work_in_owner"] == 0
    assert report["restart"]["kills"] == 1
    assert set(report["full_speed"]["anonymous_bytes"]) == {"consume_queue", "index"}
    assert all(what.startswith("put to readable") for what in figures_left_out(report))
    assert list(tmp_path.iterdir()) == []
    assert sys.path == before


@pytest.mark.long
@pytest.mark.processes
def test_consuming_is_measured(tmp_path, monkeypatch, capsys):
    """Rates, times, and the cost of waiting."""
    module = __import__("reput.bench.consume", fromlist=["consume"])
    monkeypatch.setattr(module, "WAITING_QUEUES", 20)
    few = ["--count", "640", "--size", "10", "--wake-ups", "30", "--delayed", "1000"]
    assert main(["bench", "consume", "--directory", str(tmp_path), *few]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_pulls"] == 200
    assert report["delayed_waiting"] == 1000
    assert 0 < report["bytes_per_held_pull"] < 4096
    assert report["consumed_per_s"] > 0
    assert figures_left_out(report) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("grows", ["topics", "groups", "delayed", "chain"])
def test_growth_is_measured(grows, tmp_path, monkeypatch):
    """Each cost with a law, for a store that grows in each way."""
    monkeypatch.setattr(growth, "WARM_UP_ROUNDS", 0)
    monkeypatch.setattr(growth, "INDEX_TIME_S", 0)
    monkeypatch.setattr(growth.Side, "command", lambda *_: 1.0)
    report = growth.measure_growth(tmp_path, sizes={grows: [3]}, rounds=1, calls=5)
    assert [row["what"] for row in report["rows"]] == list(growth.LAWS[grows])
    assert all(row["costs_us"][0] > 0 and row["ratio"] == 1 and row["kept"] for row in report["rows"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.processes
def test_growth_is_told_as_a_table(tmp_path, monkeypatch, capsys):
    """What grows, the sizes, the cost at each, their ratio and its law."""
    monkeypatch.setattr(growth, "WARM_UP_ROUNDS", 0)
    few = ["--only", "topics", "--topics", "12", "--rounds", "1", "--format", "text"]
    assert main(["bench", "growth", "--directory", str(tmp_path), *few]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == list(growth.GROWTH_COLUMNS)
    assert [line[8:20].strip() for line in lines[3:]] == list(growth.LAWS["topics"])
    assert all("10 12 " in line for line in lines[3:])


def test_a_part_that_grows_nothing_is_refused(capsys):
    """The error lists the known ones."""
    assert main(["bench", "growth", "--only", "colours"]) == 2
    assert "known=topics,groups,delayed,chain" in capsys.readouterr().err


def test_a_linear_cost_may_grow_as_the_store_does():
    """A flat one may not grow at all: for each, the most informative sizes are compared."""
    topics = {"put": [10e-6, 11e-6, 13e-6], "topic list": [0.5, 0.6, 11.0], "open": [0.1, 0.2, 5.0]}
    rows = {what: growth.row_of("topics", what, [10, 1000, 20_000], [costs]) for what, costs in topics.items()}
    assert [(rows[what]["compared"], rows[what]["kept"]) for what in topics] == [
        ([10, 20_000], False),
        ([1000, 20_000], True),
        ([1000, 20_000], False),
    ]
    put, topic_list, _ = growth.growth_rows({"rows": rows.values()})
    assert (put["costs"], put["unit"], put["ratio"], put["kept"]) == (
        "10.0 11.0 13.0",
        "µs",
        "1.3 (20,000 to 10)",
        "NO",
    )
    assert (topic_list["costs"], topic_list["unit"], topic_list["kept"]) == ("500.0 600.0 11,000.0", "ms", "yes")


def test_sizes_without_options_are_those_of_a_short_run():
    """--full selects those of a large store; explicit sizes override both."""
    assert growth.sizes_up_to(False)["topics"] == [10, 1000]
    full = growth.sizes_up_to(True, groups=50)
    assert full == {
        "topics": [10, 1000, 20_000],
        "groups": [10, 50],
        "delayed": [10, 1000, 1_000_000],
        "chain": [100, 1000, 500_000],
    }


@pytest.mark.slow
def test_decoding_is_measured_without_spark(tmp_path, capsys):
    """Every record of a scratch log becomes a row."""
    pytest.importorskip("pyarrow")
    command = ["bench", "export", "--no-spark", "--bytes", "1000000", "--directory", str(tmp_path)]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode"]["rows"] == report["count"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.processes
def test_opening_is_measured_as_a_user_meets_it(tmp_path, capsys):
    """By separate processes, which find every message after a close and after a kill."""
    command = ["bench", "open", "--directory", str(tmp_path), "--bytes", "1048576", "--rounds", "1"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    for opening in (report["clean"], report["killed"]):
        assert 0 < opening["imported_ms"] < opening["opened_ms"] < opening["usable_ms"]
    assert report["check_mb_per_s"] > 0
    assert figures_left_out(report) == []
    assert list(tmp_path.iterdir()) == []


def test_people_get_a_table(capsys):
    """The figure, its goal, and whether it was met; other values are omitted."""
    machine = {"processor": "A", "cores": 2, "python": "3.11.7", "file_system": "ext4", "reput": "0.1.0"}
    report = {"bench": "read", "machine": machine, "in_order_per_s": 612_345, "by_key": {"p50_us": 30.5}}
    bench.print_report(report, bench.OutputFormat.TEXT)
    assert capsys.readouterr().out == (
        "read on A, 2 cores, Python 3.11.7, ext4, reput 0.1.0, reput-kernel off\n"
        "\n"
        "what                     figure  unit  asked      kept\n"
        "32 at a time, in order  612,345  1/s   ≥ 500,000  yes\n"
        "by key, p50                30.5  µs    ≤ 30       NO\n"
    )


@pytest.mark.parametrize("arguments", [("append", "--count", "none"), ("growth", "--rounds", "0"), ("swim",)])
def test_a_wrong_request_is_refused(arguments, capsys):
    """By name."""
    assert main(["bench", *arguments]) == 2
    assert arguments[-1] in capsys.readouterr().err
