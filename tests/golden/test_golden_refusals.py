"""Refusals of the `reput` command: one line with the reason, and an exit code for scripts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from command_line import run_reput
from golden_sets import tree_digest

pytestmark = pytest.mark.slow

HOLD_STORE = """
import sys, reput
with reput.open(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""
READING_VERBS = {
    "check": (),
    "dump": (),
    "get": ("orders", "0", "0"),
    "query": ("orders", "key"),
    "status": (),
}


@pytest.mark.parametrize("verb", READING_VERBS)
@pytest.mark.parametrize("kind", ["absent", "empty", "no store"])
def test_a_directory_that_is_no_store_is_refused_and_left_alone(tmp_path, verb, kind):
    """Nothing is created in it, whatever it is."""
    directory = tmp_path / "directory"
    if kind != "absent":
        directory.mkdir()
    if kind == "no store":
        (directory / "holiday.txt").write_text("photos", "utf-8")
    before = tree_digest(tmp_path)
    ended = run_reput(verb, directory, *READING_VERBS[verb])
    assert ended.code == 3
    assert str(directory) in ended.stderr
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("verb", ["rebuild", "export"])
def test_a_verb_that_writes_elsewhere_makes_nothing_without_a_store(tmp_path, verb):
    """The target is created only when there is something to write."""
    target = ("--target", tmp_path / "target") if verb == "rebuild" else (tmp_path / "target",)
    ended = run_reput(verb, tmp_path / "absent", *target)
    assert ended.code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_told_who_holds_the_store(tmp_path):
    """The error has the holder's process id."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", HOLD_STORE, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        ended = run_reput("send", store, "orders", "--count", 1)
        assert ended.code == 3
        assert str(holder.pid) in ended.stderr
        holder.communicate(timeout=60)
    assert holder.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("dump", "STORE", "--set", "fluhsDiskType=SYNC_FLUSH"), "fluhsDiskType"),
        (("dump", "STORE", "--set", "mapped_file_size_commit_log=big"), "mapped_file_size_commit_log"),
        (("dump", "STORE", "--count", "many"), "--count"),
        (("dump", "STORE", "--format", "xml"), "--format"),
        (("get", "STORE", "orders", "zero", "0"), "zero"),
        (("check", "STORE", "--config", "absent.toml"), "absent.toml"),
        (("explode", "STORE"), "explode"),
        (("dump", "STORE", "--colour"), "--colour"),
    ],
)
def test_a_wrong_request_is_refused_with_the_name_in_the_sentence(golden_read_only, arguments, named):
    """An unknown verb, option or setting, and a word in place of a number: exit code 2."""
    store = golden_read_only("lmq-5.3") / "store"
    ended = run_reput(*(store if argument == "STORE" else argument for argument in arguments))
    assert ended.code == 2
    assert named in ended.stderr
    assert ended.stdout == ""


def test_a_key_that_is_not_there_is_the_answer_no(golden_read_only):
    """There is no result: exit code 1, and no output."""
    ended = run_reput("query", golden_read_only("basic-5.3") / "store", "Meadow_orders-12", "absent")
    assert ended.code == 1
    assert ended.stdout == ""


@pytest.mark.parametrize(
    "where", [("absent", "0", "0"), ("Meadow_orders-12", "77", "0"), ("Meadow_orders-12", "0", "9999")]
)
def test_a_queue_position_that_is_not_there_is_the_answer_no(golden_read_only, where):
    """No such topic, queue or unit: exit code 1."""
    ended = run_reput("get", golden_read_only("basic-5.3") / "store", *where)
    assert ended.code == 1
    assert ended.stdout == ""
