"""Readers that follow the log of another writer: woken by its dispatchers, not by a timer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

import reput
from embedded.tiny_stores import open_tiny
from reput.embedded import read_only_engine

pytestmark = [pytest.mark.processes]

TIMEOUT = 60.0


@pytest.fixture
def never_looks(monkeypatch):
    """A follower that is not woken would wait for an hour."""
    monkeypatch.setattr(read_only_engine, "LOOK_S", 3600.0)


@pytest.mark.usefixtures("never_looks")
@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_follower_is_woken_by_a_put(tmp_path, kind):
    """A message that is put later comes without a look at the clock, to threads and to tasks."""
    came = [threading.Event() for _ in range(3)]

    def follow(store: reput.ReadOnlyStore) -> None:
        for number, record in enumerate(store.records(follow=True)):
            assert record.body == f"body {number}".encode()
            came[number].set()

    async def afollow(store: reput.ReadOnlyStore) -> None:
        number = 0
        async for record in store.arecords(follow=True):
            assert record.body == f"body {number}".encode()
            came[number].set()
            number += 1

    with open_tiny(tmp_path / "store") as writer, reput.open(tmp_path / "store", read_only=True) as reader:
        writer.put(reput.Message("orders", b"body 0"))
        writer.wait_for("consume_queue", writer.appended, timeout=TIMEOUT)
        work = (lambda: asyncio.run(afollow(reader))) if kind == "task" else (lambda: follow(reader))
        thread = threading.Thread(target=work)
        thread.start()
        for number, event in enumerate(came):
            if number:
                writer.put(reput.Message("orders", f"body {number}".encode()))
            assert event.wait(TIMEOUT)
        reader.close()
        # The thread may have looked just before, and sleep only now.
        while thread.is_alive():
            writer.put(reput.Message("orders", b"one more"))
            thread.join(0.05)


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_follower_ends_when_the_writer_is_killed(tmp_path, kind):
    """It gets all that was put before, and does not wait for ever in the memory of a writer that has gone."""
    program = f"""
import reput
store = reput.open({str(tmp_path / "store")!r}, dispatchers=["consume_queue"])
store.put(reput.Message("orders", b"one"))
print("put", flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"put\n"
        with reput.open(tmp_path / "store", read_only=True) as reader:
            bodies: list[bytes] = []

            def follow() -> None:
                bodies.extend(record.body for record in reader.records(follow=True))

            async def afollow() -> None:
                bodies.extend([record.body async for record in reader.arecords(follow=True)])

            thread = threading.Thread(target=follow if kind == "thread" else lambda: asyncio.run(afollow()))
            thread.start()
            process.kill()
            thread.join(TIMEOUT)
            assert not thread.is_alive()
            assert bodies == [b"one"]
