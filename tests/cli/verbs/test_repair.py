"""`reput repair` and `reput dispatcher`: an operator's decisions, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reput
from command_line import run_reput
from delivering import wait_until

pytestmark = pytest.mark.processes

COUNT = 50


def damaged_store(path: Path) -> tuple[Path, int, int]:
    """Create a store whose eleventh record has one flipped bit, and return the begin and end of that record."""
    with reput.open(path, mode="inline") as store:
        results = store.put_batch([reput.Message("orders", b"%040d" % number) for number in range(COUNT)])
    damaged = results[10]
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(damaged.commit_log_offset + 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    return path, damaged.commit_log_offset, damaged.next_commit_log_offset


def test_damage_can_be_accepted(tmp_path):
    """The report says what stays readable; check still names the damage."""
    store, begin, end = damaged_store(tmp_path / "store")
    done = run_reput("repair", store, "--accept", f"{begin}..{end}", "--format", "json")
    assert done.code == 0
    report = json.loads(done.stdout)
    assert (report["from"], report["until"], report["records_behind"], report["done"]) == (begin, end, COUNT - 11, True)
    assert run_reput("check", store).code == 1


def test_a_log_can_be_cut_before_its_damage(tmp_path):
    """The cut bytes are reported, kept, and removed from every view."""
    store, begin, _ = damaged_store(tmp_path / "store")
    planned = json.loads(run_reput("repair", store, "--cut-at", begin, "--dry-run", "--format", "json").stdout)
    assert (planned["records"], planned["done"]) == (COUNT - 11, False)
    assert run_reput("check", store).code == 1
    done = json.loads(run_reput("repair", store, "--cut-at", begin, "--format", "json").stdout)
    assert done["done"] is True
    assert all(Path(path).stat().st_size for path in done["kept"])
    with reput.open(store, mode="inline") as opened:
        result = opened.put(reput.Message("orders", b"next"))
        assert (result.queue_offset, result.commit_log_offset) == (10, begin)
        opened.wait_for("consume_queue", result.next_commit_log_offset, timeout=60)
    assert run_reput("check", store).code == 0


def test_who_cut_a_log_is_told_what_to_do_before_a_rocketmq_opens_it(tmp_path):
    """RocketMQ never truncates its index, and skips records below the index's end."""
    store, begin, _ = damaged_store(tmp_path / "store")
    advice = "before RocketMQ opens the store: `reput rebuild STORE`"
    assert advice not in run_reput("repair", store, "--cut-at", begin, "--dry-run").stdout
    assert advice in run_reput("repair", store, "--cut-at", begin).stdout


@pytest.mark.parametrize(
    "options", [[], ["--cut-at", "0", "--accept", "0..1"], ["--accept", "5"], ["--accept", "1..x"], ["--cut-at", "7"]]
)
def test_a_wrong_repair_is_refused(tmp_path, options):
    """The store is unchanged."""
    store, _, _ = damaged_store(tmp_path / "store")
    refused = run_reput("repair", store, *options)
    assert refused.code == 2
    assert not (store / "reput" / "cut").exists()


def test_a_dispatcher_is_paused_and_resumed_from_outside(tmp_path):
    """The group of a running program obeys its operator."""
    with reput.open(tmp_path / "store") as store:
        store.wait_for("index", 0, timeout=60)
        assert run_reput("dispatcher", "pause", tmp_path / "store", "index").code == 0
        # The command is answered as soon as the dispatcher has been notified.
        wait_until(lambda: [row.state for row in store.status().dispatchers if row.name == "index"] == ["PAUSED"])
        result = store.put(reput.Message("orders", b"", keys=["k"]))
        assert (store.progress("index") or 0) < result.next_commit_log_offset
        assert run_reput("dispatcher", "resume", tmp_path / "store", "index").code == 0
        store.wait_for("index", result.next_commit_log_offset, timeout=60)
        unknown = run_reput("dispatcher", "pause", tmp_path / "store", "nobody")
        assert unknown.code == 3
        assert "nobody" in unknown.stderr
    assert run_reput("dispatcher", "list", tmp_path / "store").code == 3
