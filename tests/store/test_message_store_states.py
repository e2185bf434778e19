"""The writer compared with a simple model: after puts, closes, openings and kills, the log matches the model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reput.errors import MessageIllegal, StoreClosed, StoreFull
from reput.store.log.log_scan import LogScan
from reput.store.record.message import Message
from small_store import FailingFiles, ManualClock, drop, extents, open_store, overwrite, records

TOPICS = st.sampled_from(["orders", "a", "%RETRY%group"])
MESSAGES = st.builds(
    Message,
    TOPICS,
    st.binary(max_size=40) | st.integers(0, 1500).map(bytes),
    tags=st.none() | st.sampled_from(["", "paid", "标签"]),
    keys=st.none() | st.lists(st.sampled_from(["k1", "k2", "键"]), max_size=2),
    properties=st.none() | st.dictionaries(st.sampled_from(["p", "UNIQ_KEY"]), st.sampled_from(["", "v"])),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_id=st.integers(0, 2),
    delay_level=st.sampled_from([0, 0, 0, 1, 99]),
)


class StoreStates(RuleBasedStateMachine):
    """One store, its files, and their expected content."""

    @initialize()
    def make(self):
        self.directory = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.files = FailingFiles()
        # (topic, queue id, queue offset, body, store time) of each record, in log order.
        self.model = []
        self.next_offsets = {}
        self.open()

    def open(self):
        self.opened = open_store(self.directory / "store", files=self.files, clock=self.clock)

    def teardown(self):
        if hasattr(self, "opened"):
            if self.opened.state != "STOPPED":
                self.opened.close(views_complete=True)
            shutil.rmtree(self.directory)

    def expect(self, message, result):
        """Add the stored message to the model."""
        delayed = message.delay_level > 0
        topic = "SCHEDULE_TOPIC_XXXX" if delayed else message.topic
        queue_id = min(message.delay_level, 18) - 1 if delayed else message.queue_id
        queue_offset = self.next_offsets.get((topic, queue_id), 0)
        self.next_offsets[topic, queue_id] = queue_offset + 1
        self.model.append((topic, queue_id, queue_offset, bytes(message.body), result.store_timestamp))
        assert (result.queue_id, result.queue_offset) == (queue_id, queue_offset)

    @rule(message=MESSAGES)
    def put(self, message):
        end = self.opened.appended
        result = self.opened.put(message)
        assert result.commit_log_offset >= end
        self.expect(message, result)

    @rule(messages=st.lists(MESSAGES, max_size=12))
    def put_batch(self, messages):
        results = self.opened.put_batch(messages)
        assert len(results) == len(messages)
        for message, result in zip(messages, results, strict=True):
            self.expect(message, result)

    @rule(message=MESSAGES)
    def put_with_an_illegal_one(self, message):
        with pytest.raises(MessageIllegal):
            self.opened.put_batch([message, Message("../" + message.topic, b"")])

    @rule(message=MESSAGES)
    def put_on_a_full_disk(self, message):
        self.files.reserve_until = 0
        try:
            result = self.opened.put(message)
        except StoreFull:
            pass
        else:
            # There was space left that had been reserved before.
            self.expect(message, result)
        finally:
            self.files.reserve_until = 1 << 62

    @rule(ms=st.integers(-5000, 5000))
    def clock_jumps(self, ms):
        self.clock.ms += ms

    @rule()
    def flush(self):
        assert self.opened.flush() == self.opened.durable == self.opened.appended

    @rule()
    def keep_a_snapshot(self):
        # Only one thread at a time forces the log: here the flusher does, so that the snapshot need not.
        self.opened.flush()
        self.opened.durability.write_snapshot(clean=False)

    @rule()
    def close_and_open(self):
        before = self.opened
        before.close(views_complete=True)
        with pytest.raises(StoreClosed):
            before.put(Message("orders", b""))
        self.open()
        assert self.opened.epochs.epoch == before.epochs.epoch
        assert (self.opened.store_id, self.opened.appended) == (before.store_id, before.appended)

    @rule()
    def kill_and_open(self):
        before = self.opened
        drop(before)
        self.open()
        assert self.opened.epochs.epoch == before.epochs.epoch + 1
        assert (self.opened.store_id, self.opened.appended) == (before.store_id, before.appended)

    @precondition(lambda self: self.model)
    @rule(left=st.integers(0, 90))
    def kill_with_a_torn_record_and_open(self, left):
        before = self.opened
        last = records(self.directory / "store")[-1]
        durable = max((mark.offset for mark in before.epochs.marks), default=0)
        drop(before)
        if last.commit_log_offset < durable:
            # It was marked as durable, so a crash cannot have torn it.
            self.open()
            return
        overwrite(self.directory / "store", last.commit_log_offset + left, bytes(last.record_size - left))
        topic, queue_id, queue_offset, _, _ = self.model.pop()
        self.next_offsets[topic, queue_id] = queue_offset
        self.open()
        assert self.opened.appended == last.commit_log_offset

    @invariant()
    def the_log_is_what_the_model_says(self):
        if not hasattr(self, "opened"):
            return
        store = self.directory / "store"
        found = [
            (record.topic, record.queue_id, record.queue_offset, record.body, record.store_timestamp)
            for record in records(store)
        ]
        assert found == self.model
        assert {line.split()[0] for line in extents(store)} <= {"records", "blank"}
        times = [row[-1] for row in self.model]
        assert times == sorted(times)
        assert self.opened.ordinal == len(self.model)
        for (topic, queue_id), next_offset in self.next_offsets.items():
            assert self.opened.queue_offsets.next_offset(topic, queue_id) == next_offset

    @invariant()
    def a_scan_comes_to_the_end(self):
        if not hasattr(self, "opened"):
            return
        scan = LogScan(self.directory / "store")
        at, count = 0, 0
        while at < self.opened.appended:
            scanned = scan.scan(at, self.opened.appended)
            at, count = scanned.end, count + len(scanned.columns)
        scan.close()
        assert (at, count) == (self.opened.appended, len(self.model))


TestStoreStates = pytest.mark.slow(StoreStates.TestCase)
TestStoreStates.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
