"""When the flusher forces the log by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.settings import Settings
from reput.store.message import Message
from reput.store.message_store import MessageStore

TIMEOUT = 30.0


class Listener:
    """A publisher that remembers what it was told to be durable."""

    def __init__(self) -> None:
        self.offset = 0
        self.told = threading.Condition()

    def publish(self, *_: object) -> None:
        """Appended records are no news here."""

    def durable(self, offset: int) -> None:
        """Remember the offset."""
        with self.told:
            self.offset = offset
            self.told.notify_all()

    def wait_for(self, offset: int) -> bool:
        """Wait until the log is durable up to *offset*."""
        with self.told:
            return self.told.wait_for(lambda: self.offset >= offset, TIMEOUT)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[MessageStore]:
    """A writer whose flusher looks often, and has no reason of its own to force a single record."""
    settings = Settings(
        mapped_file_size_commit_log=1 << 16,
        flush_interval_commit_log=5,
        flush_commit_log_thorough_interval=3_600_000,
    )
    store = MessageStore(tmp_path / "store", settings)
    yield store
    store.close(views_complete=False)


def test_a_reader_of_durable_bytes_gets_each_record_soon(writer):
    """While somebody is shown only what is durable, a record is forced although it fills no page."""
    listener = Listener()
    writer.attach(listener, needs_properties=False, reads_durable=True)
    result = writer.put(Message("orders", b"one"))
    assert listener.wait_for(result.next_commit_log_offset)


def test_whole_pages_are_forced_without_being_asked_for(writer):
    """Four of them, by RocketMQ's default."""
    listener = Listener()
    writer.attach(listener, needs_properties=False)
    result = writer.put(Message("orders", bytes(4 * 4096)))
    assert listener.wait_for(result.next_commit_log_offset)


def test_a_full_segment_is_forced_without_being_asked_for(writer):
    """What was left behind never changes again."""
    listener = Listener()
    writer.attach(listener, needs_properties=False)
    writer.put(Message("orders", bytes(60_000)))
    rolled = writer.put(Message("orders", bytes(6_000)))
    assert rolled.commit_log_offset == 1 << 16
    assert listener.wait_for(1 << 16)
