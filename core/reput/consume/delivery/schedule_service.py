"""ScheduleService: delivers delayed messages at their deliver time.

    put with a delay level ─▶ SCHEDULE_TOPIC_XXXX, queue level - 1 ─▶ unit: tags code = deliver time
                                                                        │ due
    real topic and queue ◀── put again, once ◀──────────────────────────┘

One thread in the writer's process sleeps until the next message is due; the writer notifies it of delayed puts. The
thread starts with the first delayed message, or when a store that has some is opened. Each level delivers in queue
order. `DelayOffsets` saves the delivered offsets; after a kill, `delivery_search` recovers them from the log, so no
message is delivered twice.

If a deliver time lies further ahead than the level's delay, the clock was wrong when the message was stored, or the
table of levels was another one. Such a message is due at once, as in RocketMQ. Store times never go back, however:
while the log is ahead of a clock that was set back, the limit grows by that lead, at most by the delay again. Such a
step shifts deliveries but makes none of them early. A message that is put meanwhile waits for its delay by the
monotonic clock, see `ElapsedDelays`: otherwise it would be due at once, and a consumer's retries would not pause.

Source: RocketMQ, ScheduleMessageService.DeliverDelayedMessageTimerTask.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from reput.consume.delivery.carried_message import carried_message, carried_properties
from reput.consume.delivery.delay_offsets import DelayOffsets, DeliveredUpTo
from reput.consume.delivery.elapsed_delays import ElapsedDelays
from reput.errors import (
    DamagedStore,
    DispatcherError,
    MessageIllegal,
    OffsetOutOfRange,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    WaitTimeout,
)
from reput.store.ext.consume_queue_ext import is_address
from reput.store.message_store import MessageStore
from reput.store.queue.consume_queue import PRE_BLANK_SIZE, Unit
from reput.store.reader.consume_queue_reader import ConsumeQueueReader
from reput.store.reader.message_reader import MessageReader
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.record.message import MessageExtBrokerInner
from reput.store.record.record import decode_record
from reput.store.service.service_thread import ServiceThread
from reput_hooks import Record

__all__ = ["HALF_TOPIC", "DelayLevelRow", "ScheduleService"]

logger = logging.getLogger("reput.consume")

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
# Messages of one level put under one lock, before the next level has its turn.
BATCH = 64
# The longest sleep while a message waits, so that the thread notices when the clock is set.
SLEEP_MAX_S = 1.0
# A tags code up to this is the hash of a tag, not a time. RocketMQ 4.9 writes hashes when it dispatches during
# recovery, because it reads the table of levels only later, and delivers such messages at once, hours too early.
HASH_MAX = 2**31 - 1
# The longest wait for the consume queue before the thread checks whether to stop.
WAIT_S = 0.5
# Pause before retrying a level whose queue cannot be read or whose messages cannot be put. RocketMQ waits 10 s.
PAUSE_MS = 1_000


# Queue offset, deliver time in ms since 1970, and unit of a waiting message.
Waiting: TypeAlias = tuple[int, int, Unit]


class DelayLevelRow(msgspec.Struct, frozen=True):
    """The waiting messages of one delay level.

    Attributes:
        next_queue_offset: queue offset of the message that is delivered next.
        waiting: number of waiting messages.
        deliver_timestamp: when the next one is due, ms since 1970; None: none waits, or its queue is not read yet.
    """

    level: int
    next_queue_offset: int
    waiting: int
    deliver_timestamp: int | None


class Level:
    """One delay level. Guarded by the condition.

    Attributes:
        elapsed: what was put while the clock was behind the log.
        due: when to look at it, in ms since 1970, 0: at once; None: nothing waits.
        trouble: text of the last reported error; None: the level works.
    """

    __slots__ = ("due", "elapsed", "number", "queue_offset", "trouble")

    def __init__(self, number: int, queue_offset: int, end: int) -> None:
        """*end*: the queue offset after the level's last message."""
        self.number = number
        self.queue_offset = queue_offset
        self.elapsed = ElapsedDelays(end)
        self.due: int | None = None
        self.trouble: str | None = None


class ScheduleService(ServiceThread):
    """Delivers the delayed messages of one store.

    Args:
        writer: puts due messages, and knows how many messages each level has.
        reader: of the same store, for this service alone.
        wait_for_queue: returns when the consume queue is readable up to a commit-log offset, like `Store.wait_for`.
    """

    def __init__(
        self, writer: MessageStore, reader: MessageReader, wait_for_queue: Callable[[int, float | None], None]
    ) -> None:
        """Read the delivered offsets.

        Raises:
            DamagedStore: the saved offsets cannot be read.
        """
        super().__init__("reput-schedule", writer.threads)
        self.writer = writer
        self.reader = reader
        self.wait_for_queue = wait_for_queue
        self.opened_end = writer.appended
        self.offsets = DelayOffsets(writer, self.delivered)
        self.changed = threading.Condition()
        # Held while messages are put and counted as delivered, so that a snapshot contains both or neither.
        self.delivering = threading.Lock()
        self.begun = False
        self.delivered_count = 0
        self.refused_count = 0
        beginning = self.offsets.beginning()
        kept = dict(self.offsets.manager.offset_table)
        if beginning is not None:
            kept |= {level: max(at, kept.get(level, 0)) for level, at in beginning.queue_offsets.items()}
        queues = writer.queue_offsets.queues.get(SCHEDULE_TOPIC, {})
        numbers = {*range(1, writer.delay_levels.level_max + 1), *(queue_id + 1 for queue_id in queues)}
        # The saved offsets may lie beyond the end of a log that was truncated since.
        self.levels = {
            number: Level(number, min(kept.get(number, 0), self.end_of(number)), self.end_of(number))
            for number in sorted(numbers)
        }
        # Whether the delivered offsets are known; after a kill, the log must be searched for them.
        self.known = not self.has_waiting or (beginning is not None and beginning.commit_log_offset == self.opened_end)

    # Calls from any thread.

    def end_of(self, number: int) -> int:
        """Return the queue offset after the last message of a level."""
        return self.writer.queue_offsets.next_offset(SCHEDULE_TOPIC, number - 1)

    @property
    def has_waiting(self) -> bool:
        """Whether any message waits."""
        return any(level.queue_offset < self.end_of(level.number) for level in self.levels.values())

    def delivered(self) -> DeliveredUpTo:
        """Return the delivered offsets of each level, and the end of the log."""
        with self.delivering:
            queue_offsets = {level.number: level.queue_offset for level in self.levels.values() if level.queue_offset}
            return DeliveredUpTo(self.writer.epochs.epoch, self.writer.appended, queue_offsets)

    def status(self) -> list[DelayLevelRow]:
        """Return a row for each level that ever had a message."""
        return [
            DelayLevelRow(
                level.number,
                level.queue_offset,
                max(self.end_of(level.number) - level.queue_offset, 0),
                level.due or None,
            )
            for level in self.levels.values()
            if self.end_of(level.number)
        ]

    def waiting(self) -> dict[int, int] | None:
        """Return the number of waiting messages by level; None: the search after a kill has not finished."""
        if not self.known:
            return None
        return {row.level: row.waiting for row in self.status() if row.waiting}

    def notice(self, number: int, deliver_timestamp: int) -> None:
        """Take note of a delayed put; the writer calls this under the put lock."""
        with self.changed:
            level = self.levels.get(number)
            if level is None:
                return
            store_timestamp, end = self.writer.appender.store_timestamp, self.end_of(number)
            if store_timestamp > self.writer.clock.now_ms():
                level.elapsed.note(end, self.ticks(), deliver_timestamp - store_timestamp)
            level.elapsed.end = end
            if level.due is None:
                level.due = deliver_timestamp
                if self.thread is not None:
                    self.changed.notify()
                    return
                try:
                    self.start()
                except StoreError as error:
                    # The message is stored. The next delayed put, or the next opening, tries again to start.
                    level.due = None
                    logger.error("delivery of delayed messages is postponed: error=%s", error)

    def start(self) -> None:
        """Start the thread, which finds the messages that already wait."""
        if self.thread is None and not self.stopping:
            super().start()

    def wakeup(self) -> None:
        """End the sleep."""
        with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """Stop delivering."""
        super().stop()
        self.offsets.stop()

    def keep(self) -> None:
        """Save the delivered offsets, once the log is durable; for closing, after `stop`.

        Raises:
            OSError: the disk refused. The former snapshot remains, and the log tells the rest.
        """
        if self.known and self.thread is not None:
            self.offsets.keep()

    def close(self) -> None:
        """Stop, and close the files."""
        self.stop()
        self.reader.close()

    def forget(self) -> None:
        """Forget the thread in a forked child of the writer, where it does not run."""
        self.stopping = True
        self.thread = None

    # The thread.

    def run(self) -> None:
        """Deliver until stopped."""
        while not self.stopping:
            try:
                if not self.begun:
                    self.begin()
                self.deliver_due()
            except StoreClosed:
                return
            except StoreReadOnly as error:
                logger.error("delivery of delayed messages has ended: %s", error)
                return
            except WaitTimeout:
                # The consume queue lags, or its dispatcher does not run; the wait served as a pause.
                continue
            except (DispatcherError, StoreError, OSError) as error:
                logger.warning("delivery of delayed messages is postponed: pause_ms=%d error=%s", PAUSE_MS, error)
                with self.changed:
                    self.changed.wait_for(lambda: self.stopping, PAUSE_MS / 1000)
                continue
            self.sleep()

    def sleep(self) -> None:
        """Sleep until a message is due, a delayed message is put, or the service stops."""
        with self.changed:
            dues = [level.due for level in self.levels.values() if level.due is not None]
            # Sleeps go by another clock than this one, which may be set meanwhile.
            pause = min((min(dues) - self.writer.clock.now_ms()) / 1000, SLEEP_MAX_S) if dues else None
            if not self.stopping and (pause is None or pause > 0):
                self.changed.wait(pause)

    def begin(self) -> None:
        """Find the waiting messages of each level."""
        self.wait_for_queue(self.opened_end, WAIT_S)
        if not self.known:
            self.search()
        with self.changed:
            for level in self.levels.values():
                # Look at each level with waiting messages at once.
                level.due = 0 if level.queue_offset < self.end_of(level.number) else None
            self.known = self.begun = True
        # Not before: a snapshot taken before the search would hide deliveries from the next search.
        self.offsets.start()

    def search(self) -> None:
        """Search the log for deliveries after the saved position."""
        begin = self.search_begin()
        if begin < self.opened_end:
            from reput.consume.delivery.delivery_search import delivered_copies, find_delivered

            known = {level.number: level.queue_offset for level in self.levels.values()}
            found = find_delivered(
                delivered_copies(self.writer.directory, begin, self.opened_end), known, self.scheduled_from
            )
            for number, queue_offset in found.items():
                self.levels[number].queue_offset = max(queue_offset, known[number])

    def search_begin(self) -> int:
        """Return the commit-log offset from which to search; no unsaved delivery lies before it.

        A delivery lies after its scheduled record in the log, so the search need not begin before the first waiting
        message.
        """
        heads = [units[0] for level in self.levels.values() if (units := self.units(level, self.queue(level.number)))]
        if not heads:
            return self.opened_end
        begin = min(unit[0] for _, _, unit in heads)
        beginning = self.offsets.beginning()
        if beginning is not None:
            return max(begin, beginning.commit_log_offset)
        # RocketMQ saves queue offsets only. No message is delivered before it is due.
        due = min(deliver_timestamp for _, deliver_timestamp, _ in heads)
        if due > self.writer.appender.store_timestamp:
            return self.opened_end
        from reput.consume.delivery.delivery_search import segment_before

        return max(begin, segment_before(self.writer.directory, due))

    def scheduled_from(self, number: int, queue_offset: int) -> Iterator[tuple[int, Record]]:
        """Yield the deliverable messages of a level, with their queue offsets."""
        level = Level(number, queue_offset, queue_offset)
        queue = self.queue(number)
        while number in self.levels and (units := self.units(level, queue)):
            for record in self.records(queue, units):
                message = real_message(record)
                if message is not None and self.refusal(message) is None:
                    yield record.queue_offset, record
            level.queue_offset = units[-1][0] + 1

    def deliver_due(self) -> None:
        """Deliver at most one batch of each level; a level that fails does not hold up the others."""
        for level in self.levels.values():
            if self.stopping or not self.is_due(level):
                continue
            try:
                self.deliver(level)
                level.trouble = None
            except (StoreClosed, StoreReadOnly):
                raise
            except WaitTimeout:
                # The consume queue lags, or its dispatcher does not run; the wait served as a pause.
                self.postpone(level)
            except (DispatcherError, StoreError, OSError) as error:
                if level.trouble != str(error):
                    level.trouble = str(error)
                    logger.warning(
                        "delivery of delayed messages is postponed: level=%d pause_ms=%d error=%s",
                        level.number,
                        PAUSE_MS,
                        error,
                    )
                self.postpone(level)

    def is_due(self, level: Level) -> bool:
        """Return whether to look at a level now. A due time beyond `too_far` counts as due: the clock was set back."""
        if level.due is None:
            return False
        now = self.writer.clock.now_ms()
        return level.due <= now or level.due > max(self.too_far(level.number, now), now + PAUSE_MS)

    def ticks(self) -> int:
        """Return the monotonic clock in ms."""
        return round(self.writer.clock.monotonic() * 1000)

    def too_far(self, number: int, now: int) -> int:
        """Return the latest time at which a message of a level can be due."""
        delay = self.delay_of(number)
        return now + delay + min(max(self.writer.appender.store_timestamp - now, 0), delay)

    def postpone(self, level: Level) -> None:
        """Retry a level after `PAUSE_MS`."""
        with self.changed:
            level.due = self.writer.clock.now_ms() + PAUSE_MS

    def deliver(self, level: Level) -> None:
        """Deliver up to `BATCH` messages of one level, and set when to look at it next."""
        queue = self.queue(level.number)
        units = self.units(level, queue)
        if not units and level.queue_offset < self.end_of(level.number):
            # The writer has put more messages than the queue shows.
            self.wait_for_queue(self.writer.appended, WAIT_S)
            units = self.units(level, queue)
        now = self.writer.clock.now_ms()
        too_far = self.too_far(level.number, now)
        # In queue order: a due message waits for an earlier one that is not due yet.
        with self.changed:
            level.elapsed.forget(level.queue_offset)
            ticks, left = self.ticks(), level.elapsed.left
            lefts = [left(queue_offset, ticks) for queue_offset, _, _ in units]
        due = []
        for item, wait in zip(units, lefts, strict=True):
            if item[1] > now and (item[1] <= too_far if wait is None else wait > 0):
                break
            due.append(item)
        if due:
            self.put(level, queue, due)
        with self.changed:
            if len(due) < len(units):
                wait = lefts[len(due)]
                level.due = units[len(due)][1] if wait is None else now + wait
            elif level.queue_offset == self.end_of(level.number):
                level.due = None
            else:
                level.due = now if units else now + PAUSE_MS

    def put(self, level: Level, queue: ConsumeQueueReader, due: list[Waiting]) -> None:
        """Put due messages under their real topics, all under one lock.

        Raises:
            DamagedStore: a record cannot be read; those before it were put.
        """
        try:
            records = self.records(queue, due)
        except DamagedStore:
            if len(due) == 1:
                raise
            for item in due:
                self.put(level, queue, [item])
            return
        messages = []
        for record in records:
            message = real_message(record)
            if message is None:
                self.refuse(record, "it names no topic and queue")
            else:
                messages.append((record, message))
        with self.delivering:
            try:
                try:
                    self.writer.appender.append_batch([message for _, message in messages])
                except MessageIllegal:
                    messages = self.those_that_may_be_put(messages)
                    self.writer.appender.append_batch([message for _, message in messages])
            except StoreError as error:
                # A full disk cut the batch short: retry the rest.
                self.delivered_count += error.stored_count
                if error.stored_count:
                    level.queue_offset = messages[error.stored_count - 1][0].queue_offset + 1
                raise
            self.delivered_count += len(messages)
            level.queue_offset = due[-1][0] + 1

    def those_that_may_be_put(
        self, messages: list[tuple[Record, MessageExtBrokerInner]]
    ) -> list[tuple[Record, MessageExtBrokerInner]]:
        """Report the messages that the store will never accept, and return the others."""
        taken = []
        for record, message in messages:
            reason = self.refusal(message)
            if reason is None:
                taken.append((record, message))
            else:
                self.refuse(record, reason)
        return taken

    def refusal(self, message: MessageExtBrokerInner) -> str | None:
        """Return the limit that *message* breaks; None: it breaks none."""
        try:
            self.writer.preparer.prepare(message)
        except MessageIllegal as error:
            return str(error)
        return None

    def refuse(self, record: Record, reason: str) -> None:
        """Report a message that will never be delivered. It stays in the log."""
        self.refused_count += 1
        logger.error(
            "a delayed message cannot be delivered: reason=%r queue_id=%d queue_offset=%d commit_log_offset=%d",
            reason,
            record.queue_id,
            record.queue_offset,
            record.commit_log_offset,
        )

    # Reading a level.

    def queue(self, number: int) -> ConsumeQueueReader:
        return self.reader.queue(SCHEDULE_TOPIC, number - 1)

    def delay_of(self, number: int) -> int:
        """Return the longest delay that a level ever had, in ms: older messages keep the delay they were put with."""
        return self.writer.store_files.delay_history.longest_delay(number)

    def units(self, level: Level, queue: ConsumeQueueReader) -> list[Waiting]:
        """Return queue offset, deliver time and unit of the next messages in a level's queue.

        Skips messages that retention deleted before they were due.

        Raises:
            DamagedStore: the queue's file is missing, or was cut short.
        """
        low, high = queue.range()
        at = level.queue_offset
        if at < low:
            logger.error(
                "delayed messages were removed from the log before they were due: level=%d from=%d until=%d",
                level.number,
                at,
                low,
            )
            at = level.queue_offset = low
        if at >= high:
            return []
        units = queue.units.units(at, min(BATCH, high - at))
        if not units:
            queue.refuse_missing_file(at)
        return [(at + number, self.deliver_timestamp(queue, unit), unit) for number, unit in enumerate(units)]

    def deliver_timestamp(self, queue: ConsumeQueueReader, unit: Unit) -> int:
        """Return when the message of *unit* is due; 0 (at once) if the log lacks it, so that the caller skips it."""
        tags_code = unit[2]
        if unit[1] == PRE_BLANK_SIZE:
            return 0
        if is_address(tags_code):
            ext = queue.ext.get(tags_code)
            tags_code = 0 if ext is None else ext.tags_code
        if tags_code > HASH_MAX:
            return tags_code
        try:
            record = self.reader.store.record_at(unit[0])
        except OffsetOutOfRange:
            return 0
        if record is None:
            return 0
        level = record.properties.get("DELAY", "")
        return self.writer.store_files.delay_history.at(unit[0]).deliver_timestamp(level, record.store_timestamp) or 0

    def records(self, queue: ConsumeQueueReader, units: list[Waiting]) -> list[Record]:
        """Return the records of *units*, without those that the log no longer has."""
        data = queue.read([(queue_offset, unit) for queue_offset, _, unit in units], [], [])
        found = list(map(decode_record, data))
        if len(found) < len(units):
            there = {record.queue_offset for record in found}
            missing = [queue_offset for queue_offset, _, _ in units if queue_offset not in there]
            logger.error(
                "the log no longer has delayed messages: topic=%s queue_id=%d queue_offsets=%s",
                SCHEDULE_TOPIC,
                queue.queue_id,
                missing,
            )
        return found


def real_message(record: Record) -> MessageExtBrokerInner | None:
    """Return the message to put for a scheduled record; None: it names no queue that could take it.

    The properties keep DELAY, REAL_TOPIC and REAL_QID on disk, as in RocketMQ. A half message is never delayed;
    RocketMQ drops a scheduled record whose REAL_TOPIC is the half topic.
    """
    topic = record.properties.get("REAL_TOPIC", "")
    try:
        queue_id = int(record.properties.get("REAL_QID", ""))
    except ValueError:
        return None
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC):
        return None
    return carried_message(record, topic, queue_id, carried_properties(record))
