"""`reput status` of a store directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import reput
from command_line import REPUT, run_reput
from reput.cli import main
from reput.cli.verbs.status import status_text
from reput.store.log.segments import Segments
from reput.store.recovery.log_end import find_log_end
from reput.store.state.lease_row import LeaseRow

NOBODY = 65534
ROW = {
    "store": "/s",
    "store_id": "ab",
    "version": "1",
    "kernel": None,
    "started": 5,
    "writer": {
        "pid": 7,
        "appended": 100,
        "durable": 90,
        "commit_log_offset_min": 0,
        "epoch": 1,
        "state": "RUNNING",
        "reason": None,
    },
    "lease": None,
    "dispatchers": [
        {
            "name": "index",
            "distribution": "reput",
            "version": "1",
            "pid": None,
            "state": "BACKOFF",
            "progress": 60,
            "durable_cursor": None,
            "lag_bytes": 40,
            "lag_messages": None,
            "lag_seconds": 1.5,
            "restart_count": 2,
            "lapped_count": 0,
            "gap_bytes": 0,
            "heartbeat_age_ms": None,
            "rss_bytes": None,
            "rebuild_progress": None,
            "counters": {"pages": 12, "words": 340},
            "error": "Traceback (most recent call last):\n  File x\nit broke\n",
        }
    ],
    "waiting_delays": {"2": 1, "3": 4},
    "half_messages": None,
    "statistics": None,
    "settings": {"message_delay_level": "1s 1h", "enable_lmq": False},
    "damage": [{"from": 10, "until": None, "reason": "no record", "accepted": False, "met": 5}],
}


def test_people_see_a_row_for_the_writer_and_one_for_each_dispatcher():
    """Unknown values are a hyphen, never 0. A plugin's counters are shown below, by their names."""
    assert status_text(ROW) == (
        "store=/s store_id=ab version=1 kernel=none\n"
        "\n"
        "settings: message_delay_level='1s 1h' enable_lmq=false\n"
        "\n"
        "pid  state    appended  durable  commit_log_offset_min  epoch\n"
        "  7  RUNNING       100       90                      0      1\n"
        "\n"
        "name   state    progress  lag_bytes  lag_seconds  restart_count  gap_bytes  error\n"
        "index  BACKOFF        60         40        1.500              2          0  it broke\n"
        "\n"
        "counters of index: pages=12 words=340\n"
        "\n"
        "from  accepted  met  reason\n"
        "  10  False       5  no record\n"
        "\n"
        "waiting_delays=5 half_messages=-"
    )


def test_a_node_of_a_lease_shows_its_role():
    """With epoch, holder, and the nodes that have every acknowledged message."""
    row = LeaseRow("orders", "m1", "master", 7, "m1", "h:1", ("m1", "m2"), 8.5)
    assert (
        "\n\nlease: name=orders member=m1 role=master epoch=7 holder=m1 master=h:1 in_sync=m1,m2 seconds_left=8.500\n\n"
        in status_text({**ROW, "lease": msgspec.to_builtins(row)})
    )


def test_a_store_that_nobody_has_open_is_stopped(golden_read_only, golden_about):
    """With the state on disk, and exit code 0; the fixture checks that no byte changes."""
    ended = run_reput("status", golden_read_only("basic-4.9") / "store", "--format", "json")
    assert ended.code == 0
    report = ended.report()
    assert report["writer"]["state"] == "STOPPED"
    assert report["writer"]["appended"] == golden_about("basic-4.9")["maxOffsetOfRealStore"]
    assert report["started"] is None
    assert report["statistics"] is None


PROGRAM = """
import reput, sys
with reput.open(sys.argv[1], message_delay_level="1h 2h") as store:
    store.transactions.put_half("banking", reput.Message("orders", b"half"))
    store.put_batch([reput.Message("orders", b"x")] * 3 + [reput.Message("orders", b"late", delay_level=2)])
    with store.consumer("billing", "orders") as consumer:
        consumer.retry(consumer.receive(), -1)
        consumer.acknowledge(consumer.receive())
        print(flush=True)
        sys.stdin.read()
"""


@pytest.mark.processes
def test_a_store_that_is_being_written_shows_its_group(tmp_path):
    """The writer's process id, its dispatchers, and the puts and consumption; topics and groups show them, too."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", PROGRAM, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        report = run_reput("status", store, "--format", "json").report()
        text = run_reput("status", store).stdout
        topics = run_reput("topic", "list", store, "--format", "json").rows()
        groups = run_reput("group", "list", store, "--format", "json").rows()
        writer.send_signal(signal.SIGSTOP)
        stopped = run_reput("status", store, "--format", "json").report()
        writer.send_signal(signal.SIGCONT)
        writer.communicate(timeout=60)
    assert report["writer"]["pid"] == writer.pid
    assert report["writer"]["state"] == "RUNNING"
    assert [row["name"] for row in report["dispatchers"]] == ["consume_queue", "index"]
    assert report["waiting_delays"] == {"2": 1}
    assert report["half_messages"] == 1
    put = report["statistics"]["put"]
    assert put["put_nums"] == sum(put["put_distribute_time"].values()) == 6
    assert put["put_entire_time_max_ms"] > 0
    assert put["put_tps"]["600s"] is None
    assert "put_nums=6 " in text
    assert text.partition("waiting_delays=")[2].startswith("1 half_messages=1")
    (orders,) = (row for row in topics if row["topic"] == "orders")
    assert orders["put_nums"] == 3
    assert orders["put_size"] > 3 * 91
    (billing,) = (row for row in groups if row["group"] == "billing")
    assert (billing["get_nums"], billing["send_back_nums"], billing["dead_letter_nums"]) == (2, 1, 1)
    assert billing["latency_max_ms"] is not None
    # It is closed by now, and its waiting messages are still known.
    ended = run_reput("status", store, "--format", "json").report()
    assert ended["waiting_delays"] in ({"2": 1}, {})
    assert (ended["half_messages"], ended["statistics"]) == (1, None)
    assert " half_messages=1" in run_reput("status", store).stdout
    # A stopped program does not answer, and its group is still shown.
    assert stopped["writer"]["pid"] == writer.pid
    assert (stopped["waiting_delays"], stopped["half_messages"], stopped["statistics"]) == (None, None, None)


@contextmanager
def another_user():
    """Run as another user."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_told_that_the_state_is_unknown(capsys):
    """With the reason, and exit code 1; verbs that need the group end with 3. Root sees everything."""
    directory = Path(tempfile.mkdtemp(prefix="reput-status-"))
    directory.chmod(0o755)
    store = str(directory / "store")
    ask, pause = ["status", store, "--format", "json"], ["dispatcher", "pause", store, "index"]
    try:
        with reput.open(store) as opened:
            end = opened.put(reput.Message("orders", b"x")).next_commit_log_offset
            opened.wait_for("index", end, 60)
            # Import everything first, which another user might not be able to do: the end of the log, too.
            assert find_log_end(Path(store), Segments(Path(store) / "commitlog")) >= end
            assert main(ask) == 0
            known = json.loads(capsys.readouterr().out)
            with another_user():
                assert main(ask) == 1
                unknown = json.loads(capsys.readouterr().out)
                assert main(pause) == 3
                refused = capsys.readouterr().err
    finally:
        shutil.rmtree(directory)
    assert [row["state"] for row in known["dispatchers"]] == ["RUNNING", "RUNNING"]
    assert (unknown["writer"]["pid"], unknown["writer"]["state"]) == (os.getpid(), "RUNNING")
    assert [row["state"] for row in unknown["dispatchers"]] == ["UNKNOWN", "UNKNOWN"]
    assert "it belongs to another user" in unknown["dispatchers"][0]["error"]
    assert "it belongs to another user" in refused


def test_a_store_that_runs_its_dispatchers_inline_is_not_called_stopped(tmp_path):
    """No other process can ask them."""
    with reput.open(tmp_path / "store", mode="inline", mapped_file_size_commit_log=1 << 16):
        status = run_reput("status", tmp_path / "store", "--format", "json")
        listed = run_reput("dispatcher", "list", tmp_path / "store")
    assert status.code == 1
    assert status.report()["dispatchers"][0]["state"] == "UNKNOWN"
    assert "mode='inline'" in status.report()["dispatchers"][0]["error"]
    assert listed.code == 3


@pytest.mark.processes
def test_watching_shows_it_again(golden_read_only):
    """Until it is interrupted: exit code 130."""
    command = [str(REPUT), "status", str(golden_read_only("lmq-5.3") / "store"), "--watch", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first, second = watching.stdout.readline(), watching.stdout.readline()
        watching.send_signal(2)
        _, error = watching.communicate(timeout=60)
    assert first == second
    assert error == ""
    assert watching.returncode == 130


def test_an_address_needs_a_broker(capsys):
    """Nothing listens on the first port."""
    assert main(["status", "127.0.0.1:1"]) == 3
    assert "address=127.0.0.1:1" in capsys.readouterr().err


def test_on_a_terminal_no_line_is_longer_than_it_is_wide():
    """Columns that do not fit form a further table; a long reason is wrapped."""
    error = "RuntimeError: " + "it went wrong " * 20
    row = ROW | {"dispatchers": [{**dispatcher, "error": error} for dispatcher in ROW["dispatchers"] * 3]}
    assert max(map(len, status_text(row, 80).splitlines())) <= 80
    lines = status_text(row, 50).splitlines()
    assert max(map(len, lines)) <= 50
    assert sum(line.startswith("name") for line in lines) > 1
    shown = " ".join(" ".join(lines).split())
    assert f"error of index: {error.strip()}" in shown
    for name in ("lag_bytes", "restart_count", "progress"):
        assert name in shown
