"""SQLite has the methods of a store that are measured."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from benchmarks.figures import FIGURES
from benchmarks.sqlite import SqliteStore, main
from reput import Message
from reput.bench.figures import figures_of


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_put_is_found(tmp_path, flush):
    """By its place, and by each of its keys, as in reput; another connection sees it at once."""
    with SqliteStore(tmp_path / "store", flush_disk_type=flush) as store:
        first = store.put(Message("bench", b"one", tags="tag", keys=["a", "b"]))
        second = asyncio.run(store.aput(Message("bench", b"two", keys=["b"])))
        batch = store.put_batch([Message("bench", b"three"), Message("bench", b"four")])
        assert [place.queue_offset for place in (first, second, *batch)] == [0, 1, 2, 3]
        assert [found.body for found in store.get("bench", 0, 1, 2)] == [b"two", b"three"]
        assert {found.body for found in store.query("bench", "b")} == {b"one", b"two"}
        assert store.query("other", "b") == []
        with store.connection as connection:
            modes = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2 if flush == "SYNC_FLUSH" else 1]


def test_puts_that_wait_share_a_transaction(tmp_path, monkeypatch):
    """All that arrive during a commit are in the next one."""
    groups: list[int] = []
    committing, go_on = threading.Event(), threading.Event()
    put_batch = SqliteStore.put_batch

    def put_slowly(store, messages):
        groups.append(len(messages))
        committing.set()
        assert go_on.wait(60)
        return put_batch(store, messages)

    monkeypatch.setattr(SqliteStore, "put_batch", put_slowly)
    with SqliteStore(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as store:
        puts = [store.submit(Message("bench", b"first"))]
        assert committing.wait(60)
        puts += [store.submit(Message("bench", b"later")) for _ in range(5)]
        go_on.set()
        assert [put.result(60).queue_offset for put in puts] == [0, 1, 2, 3, 4, 5]
    assert groups == [1, 5]


@pytest.mark.parametrize("what", ["append", "sync", "read"])
def test_its_report_is_that_of_reput(what, capsys):
    """So its figures stand in the same rows."""
    assert main([what, "--count", "2000", "--size", "100", "--seconds", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["body_size"] == 100
    found = {figure.what for figure, _ in figures_of(report, FIGURES)}
    assert found >= {figure.what for figure in FIGURES[what] if figure.multiple is not None or figure.peer}
