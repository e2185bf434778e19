"""Programs that end without closing their stores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reput

PROGRAM = """
import multiprocessing, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import reput

WAIT_S = 60.0
path, mode, way = sys.argv[1:]
pool = ThreadPoolExecutor(2)


def work():
    global store
    store = reput.open(path, mode=mode, flush_consumer_offset_interval=3_600_000)
    consumer = store.consumer("billing", "orders")
    for number in range(3):
        store.put(reput.Message("orders", b"%d" % number))
    for _ in range(3):
        consumer.acknowledge(consumer.receive(WAIT_S))
    # Not waited for, so that its view still lags when the program ends.
    store.put(reput.Message("orders", b"last"))


def put_more():
    threading.main_thread().join()
    store.put(reput.Message("orders", b"by a thread"))


def work_with_a_pool():
    pool.submit(work).result()


def after_a_fork(context, target=work):
    child = multiprocessing.get_context(context).Process(target=target)
    child.start()
    child.join(WAIT_S)
    # It has ended by itself, or is not to outlive the test.
    child.kill()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    match way:
        case "fork" | "spawn":
            after_a_fork(way)
        case "fork with a pool" | "spawn with a pool":
            after_a_fork(way.split()[0], work_with_a_pool)
        case "os.fork":
            pid = os.fork()
            if pid:
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    work()
    match way:
        case "exit":
            sys.exit(3)
        case "raise":
            raise ValueError("planted")
        case "interrupt":
            signal.raise_signal(signal.SIGINT)
        case "thread":
            threading.Thread(target=put_more).start()
        case "forget":
            del store
"""
EXIT_CODES = {"exit": 3, "raise": 1, "interrupt": -2}


def run(tmp_path: Path, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the program on a store."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, *python, str(tmp_path / "program.py"), str(tmp_path / "store"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# The result does not depend on whether dispatchers run in their own processes.
WAYS = [
    *(
        (way, "inline")
        for way in ("return", "exit", "raise", "interrupt", "thread", "forget", "fork", "spawn", "os.fork")
    ),
    ("fork with a pool", "inline"),
    ("spawn with a pool", "inline"),
    ("return", "processes"),
    ("fork", "processes"),
]


@pytest.mark.newest_python
@pytest.mark.processes
@pytest.mark.parametrize(("way", "mode"), WAYS)
def test_a_program_that_ends_without_close_leaves_a_store_as_if_it_had_closed_it(tmp_path, way, mode):
    """No acknowledged message is delivered again, and RocketMQ opens the store as cleanly shut down."""
    ended = run(tmp_path, mode, way)
    assert ended.returncode == EXIT_CODES.get(way, 0), ended.stderr
    assert ("planted" in ended.stderr) == (way == "raise")
    assert ended.stderr == "" or way in ("raise", "interrupt")
    assert not (tmp_path / "store" / "abort").exists()
    expected = [b"last", b"by a thread"] if way == "thread" else [b"last"]
    with reput.open(tmp_path / "store", mode="inline") as store, store.consumer("billing", "orders") as consumer:
        assert [consumer.receive(60.0).body for _ in expected] == expected
        assert consumer.receive(0) is None


@pytest.mark.newest_python
@pytest.mark.processes
def test_a_program_that_does_not_close_is_warned(tmp_path):
    """The store is also closed if warnings are errors."""
    for shown in ("default::ResourceWarning", "error::ResourceWarning"):
        ended = run(tmp_path, "inline", "return", python=("-W", shown))
        assert f"a store was not closed, and is closed as the program ends: store={tmp_path / 'store'}" in ended.stderr
        assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.newest_python
@pytest.mark.processes
def test_what_comes_after_the_end_of_the_program_is_refused(tmp_path):
    """For example, an exit handler that was registered before reput finds the store closed."""
    program = f"""
import atexit

def put_late():
    try:
        store.put(reput.Message("orders", b"late"))
    except reput.errors.StoreClosed as error:
        print("refused:", error)

atexit.register(put_late)
import reput
import reput.errors
store = reput.open({str(tmp_path / "store")!r}, mode="inline")
atexit.register(lambda: store.put(reput.Message("orders", b"in time")))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("refused: the store is closed"), ended.stderr
    with reput.open(tmp_path / "store", mode="inline") as store:
        assert [record.body for record in store.records()] == [b"in time"]


@pytest.mark.newest_python
@pytest.mark.processes
def test_a_forked_child_that_ends_leaves_its_parents_store_alone(tmp_path):
    """It closes nothing, and logs nothing."""
    program = f"""
import os, sys, warnings
import reput
store = reput.open({str(tmp_path / "store")!r}, mode="inline")
warnings.simplefilter("ignore", DeprecationWarning)
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
store.put(reput.Message("orders", b"after it"))
store.close()
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with reput.open(tmp_path / "store", mode="inline") as store:
        assert [record.body for record in store.records()] == [b"after it"]
