"""SQLite with a store's methods, measured by the loops that measure reput: `append`, `sync` and `read`.

    append   WAL, synchronous=NORMAL: a killed process loses nothing, a power cut the last puts. So does ASYNC_FLUSH.
    sync     WAL, synchronous=FULL: a put returns when the disk has it. So does SYNC_FLUSH. One thread commits, in one
             transaction, all puts that arrived during its last commit.
    read     gets by primary key, queries by an index

A put is one `INSERT`, which also writes both indexes of keys: nothing has to catch up. All else is SQLite's default.

    python -m benchmarks.sqlite read --count 20000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import sqlite3
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from reput import Message
from reput.bench.append import measure_append
from reput.bench.read import measure_read
from reput.bench.sync import measure_sync

__all__ = ["SqliteStore", "main"]

# The second key is for `read`, whose messages have two.
SCHEMA = """
CREATE TABLE messages (queue_offset INTEGER PRIMARY KEY, topic TEXT, tags TEXT, key TEXT, key_2 TEXT, body BLOB);
CREATE INDEX by_key ON messages (topic, key);
CREATE INDEX by_key_2 ON messages (topic, key_2) WHERE key_2 IS NOT NULL;
"""
INSERT = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)"
COLUMNS = "SELECT queue_offset, body FROM messages"
GET = f"{COLUMNS} WHERE queue_offset >= ? ORDER BY queue_offset LIMIT ?"
QUERY = f"{COLUMNS} WHERE topic = ?1 AND key = ?2 UNION ALL {COLUMNS} WHERE topic = ?1 AND key_2 = ?2"


class Stored(NamedTuple):
    """The place of a message. There is one queue, and no log besides the table."""

    queue_offset: int
    queue_id: int = 0
    next_commit_log_offset: int = 0


class Found(NamedTuple):
    """A message that was read."""

    queue_offset: int
    body: bytes


class SqliteStore:
    """One database; used as a context, like a store.

    Its indexes are always complete, so `appended` and `progress` do not count, and `wait_for` returns at once.
    """

    appended = 0

    def __init__(self, path: Path, *, flush_disk_type: str = "ASYNC_FLUSH") -> None:
        path.mkdir()
        # Without a level of isolation the module begins no transactions of its own: an INSERT alone is one.
        self.connection = sqlite3.connect(path / "messages.db", isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.synchronous = flush_disk_type == "SYNC_FLUSH"
        self.connection.execute(f"PRAGMA synchronous={'FULL' if self.synchronous else 'NORMAL'}")
        self.connection.executescript(SCHEMA)
        self.end = 0
        self.waiting: queue.SimpleQueue[tuple[Message, Future[Stored]]] = queue.SimpleQueue()
        # It ends with the program.
        threading.Thread(target=self.commit_groups, daemon=True).start()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def pids(self) -> list[int]:
        return [os.getpid()]

    def progress(self, view: str) -> int:
        return 0

    def wait_for(self, view: str, commit_log_offset: int, timeout: float) -> None:
        pass

    def put(self, message: Message) -> Stored:
        return self.submit(message).result() if self.synchronous else self.insert(message)

    async def aput(self, message: Message) -> Stored:
        return await asyncio.wrap_future(self.submit(message))

    def put_batch(self, messages: Sequence[Message]) -> list[Stored]:
        self.connection.execute("BEGIN")
        stored = [self.insert(message) for message in messages]
        self.connection.execute("COMMIT")
        return stored

    def insert(self, message: Message) -> Stored:
        key, key_2, *_ = *(message.keys or ()), None, None
        self.connection.execute(INSERT, (self.end, message.topic, message.tags, key, key_2, message.body))
        self.end += 1
        return Stored(self.end - 1)

    def submit(self, message: Message) -> Future[Stored]:
        """Hand a message to the thread that commits."""
        stored: Future[Stored] = Future()
        self.waiting.put((message, stored))
        return stored

    def commit_groups(self) -> None:
        """Commit what waits, all of it in one transaction, again and again."""
        while True:
            group = [self.waiting.get()]
            while not self.waiting.empty():
                group.append(self.waiting.get())
            for (_, stored), place in zip(group, self.put_batch([message for message, _ in group]), strict=True):
                stored.set_result(place)

    def get(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[Found]:
        return [Found._make(row) for row in self.connection.execute(GET, (queue_offset, count_max))]

    def query(self, topic: str, key: str) -> list[Found]:
        return [Found._make(row) for row in self.connection.execute(QUERY, (topic, key))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the report as one JSON object. The options are those of `reput bench`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sqlite", description="Measure SQLite as a store.")
    parser.add_argument("what", choices=("append", "sync", "read"))
    parser.add_argument("--count", type=int, default=100_000, metavar="N", help="messages per run")
    parser.add_argument("--size", type=int, default=1024, metavar="B", help="body size in bytes")
    parser.add_argument("--seconds", type=int, default=10, metavar="S", help="append: seconds at a steady rate")
    asked = parser.parse_args(arguments)
    more: dict[str, Any] = {"count": asked.count, "body_size": asked.size, "open_store": SqliteStore}
    if asked.what == "append":
        report = measure_append(latency_seconds=asked.seconds, **more)
    else:
        report = (measure_sync if asked.what == "sync" else measure_read)(**more)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
