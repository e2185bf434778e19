"""MasterConfiguration: brings along what a master keeps beside its log.

    28 where its log begins and ends: told to the follower
    21 topics  ──▶ config/topics.json             the master's replace ours when the version differs
    201 groups ──▶ config/subscriptionGroup.json  the same
    43 offsets ──▶ config/consumerOffset.json     the master's replace ours
    45 delays  ──▶ config/delayOffset.json        replaced
    402, 61, 60 ─▶ see `RocketmqState`            of a RocketMQ 5: replaced; reput keeps them for a later RocketMQ

Topics, groups and offsets that only this store has stay: see `BroughtAlong`.

Offsets never point beyond the copied log: they are cut at the next queue offset here, and follow with the next round.

Source: RocketMQ broker, SlaveSynchronize.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from reput.embedded.store_engine import StoreEngine
from reput.errors import ReputError
from reput.remoting.request_code import RequestCode
from reput.replication.brought_along import BroughtAlong
from reput.replication.follower import Follower
from reput.replication.master_requests import Refused
from reput.replication.rocketmq_state import RocketmqState
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.disk.shortages import tell_store_error
from reput.store.service.service_thread import ServiceThread

__all__ = ["MasterConfiguration"]

INTERVAL_S = 10.0
# While offsets wait for the log.
CATCH_UP_INTERVAL_S = 1.0
QUEUE_SEPARATOR = "@"

logger = logging.getLogger(__name__)


class MasterConfiguration(ServiceThread):
    """A thread that asks at once after each connection, and then every ten seconds.

    While the follower does not copy, what answers may be another broker, or a master that has lost its log. Its
    configuration would replace the one that belongs to the copied log, so it is only asked where its log lies.
    """

    def __init__(self, engine: StoreEngine, follower: Follower) -> None:
        super().__init__("reput-configuration", engine.writer.threads)
        self.engine = engine
        self.follower = follower
        self.requests = follower.requests
        self.state = RocketmqState(engine.directory, engine.started)
        self.delays = DelayOffsetManager(engine.directory, engine.writer.files)
        self.brought = BroughtAlong(engine.directory, engine.writer.files)
        self.complaints: dict[int, str] = {}
        # Where the log ended when offsets were cut last; None: none was.
        self.cut_at: int | None = None

    def seconds_to_next(self) -> float:
        """Return the time between two rounds."""
        waits = self.cut_at is not None and self.engine.writer.appended > self.cut_at
        return CATCH_UP_INTERVAL_S if waits else INTERVAL_S

    def do_round(self) -> None:
        """Ask for all. One that fails is asked for again in the next round, and complained about once."""
        rounds: tuple[tuple[int, Callable[[int], None]], ...] = (
            (RequestCode.GET_BROKER_RUNTIME_INFO, lambda code: self.follower.take_bounds(*self.requests.bounds())),
            (RequestCode.GET_ALL_TOPIC_CONFIG, lambda code: self.take_topics(self.requests.json(code))),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda code: self.take_groups(self.requests.json(code))),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, lambda code: self.take_offsets(self.requests.json(code))),
            (RequestCode.GET_ALL_DELAY_OFFSET, lambda code: self.take_delays(self.requests.json(code))),
            (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.take_state),
            (RequestCode.GET_TIMER_METRICS, self.take_state),
            (RequestCode.GET_TIMER_CHECK_POINT, self.take_state),
        )
        for code, take in rounds:
            if self.stopping:
                return
            if code != RequestCode.GET_BROKER_RUNTIME_INFO and not self.follower.is_copying():
                continue
            try:
                with tell_store_error("the master's configuration cannot be written"):
                    take(code)
            except (ReputError, msgspec.ValidationError) as error:
                if self.complaints.get(code) != str(error):
                    self.complaints[code] = str(error)
                    logger.warning("configuration of the master is not copied yet: code=%d reason=%s", code, error)
            else:
                self.complaints.pop(code, None)

    def take_topics(self, fields: dict[str, Any]) -> None:
        """Describe the topics as the master does."""
        topics = self.engine.services.topics
        # The mappings of RocketMQ 5's static topics are not those of the file.
        kept: dict[str, Any] = {name: fields[name] for name in ("dataVersion", "topicConfigTable") if name in fields}
        for name in self.brought.replace_table("topics", topics.manager, kept):
            topics.on_change(name)

    def take_groups(self, fields: dict[str, Any]) -> None:
        """Describe the groups as the master does."""
        self.brought.replace_table("groups", self.engine.services.groups.manager, fields)

    def take_offsets(self, fields: dict[str, Any]) -> None:
        """Move the master's groups to where they are; groups that only this store has stay where they are."""
        offsets = self.engine.services.managers.offsets
        table = msgspec.convert(fields.get("offsetTable") or {}, dict[str, dict[int, int]], strict=False)
        queue_offsets = self.engine.writer.queue_offsets
        appended = self.engine.writer.appended
        self.cut_at = None
        known, theirs = self.brought.names.offsets, frozenset(table)
        # As of `replace_table`.
        self.brought.note(offsets=known | theirs)
        with offsets.lock:
            for key in known - theirs:
                topic, _, group = key.rpartition(QUEUE_SEPARATOR)
                offsets.remove(group, topic)
            for key, queues in table.items():
                topic, _, group = key.rpartition(QUEUE_SEPARATOR)
                for queue_id, queue_offset in queues.items():
                    end = queue_offsets.next_offset(topic, queue_id)
                    if queue_offset > end:
                        self.cut_at = appended
                    offsets.commit_offset(group, topic, queue_id, min(queue_offset, end))
            offsets.persist()
        self.brought.note(offsets=theirs)

    def take_delays(self, fields: dict[str, Any]) -> None:
        """Keep up to where the master has delivered each delay level."""
        with self.delays.lock:
            self.delays.read_fields(fields)
            self.delays.persist()

    def take_state(self, code: int) -> None:
        """Keep what reput itself does not use, if the master has it: RocketMQ 4 has none, and 5 may have no wheel."""
        try:
            body = self.requests.body(code)
        except Refused:
            return
        self.state.take(code, body, self.engine.writer.files)
