"""ConsumerOffsetProcessor: how far groups are, and what queues hold.

Source: RocketMQ broker, ConsumerManageProcessor and AdminBrokerProcessor.
"""

from __future__ import annotations

from reput.access.access_control import AccessControl
from reput.embedded.store_engine import StoreEngine
from reput.errors import DamagedStore, OffsetOutOfRange, RequestRefused
from reput.json_encoding import encode_json
from reput.remoting.connection import Connection
from reput.remoting.custom_header import text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode
from reput.store.reader.results import BoundaryType

__all__ = ["ConsumerOffsetProcessor"]

SUCCESS = ResponseCode.SUCCESS
# Pairs of topic and group whose offsets are kept.
ROWS_MAX = 1_000_000
UNKNOWN_QUEUES_MAX = 1024
# Bytes of the messages that a query returns.
QUERY_SIZE_MAX = 8 << 20


class ConsumerOffsetProcessor:
    """Used in the thread of the broker's loop only, except for methods that say they read the log."""

    def __init__(self, engine: StoreEngine, access: AccessControl | None = None) -> None:
        """*access* decides which records a client may view; None: all."""
        self.engine = engine
        self.access = access
        self.services = engine.services
        self.offsets = self.services.managers.offsets

    def query(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_CONSUMER_OFFSET."""
        del connection
        fields = request.ext_fields
        group, topic, queue_id = text(fields, "consumerGroup"), text(fields, "topic"), whole(fields, "queueId")
        offset = self.offsets.query_offset(group, topic, queue_id)
        if offset is None:
            low, high = self.range_of(topic, queue_id)
            sets_zero = truth(fields, "setZeroIfNotFound", True)
            if not (sets_zero and low == 0 and self.begins_in_memory(topic, queue_id, high)):
                remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark=remark)
            offset = 0
        return RemotingCommand(SUCCESS, {"offset": str(offset)})

    def update(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer UPDATE_CONSUMER_OFFSET."""
        del connection
        fields = request.ext_fields
        group, topic = text(fields, "consumerGroup"), text(fields, "topic")
        queue_id, offset = whole(fields, "queueId"), whole(fields, "commitOffset", is_long=True)
        self.services.groups.require(group)
        if self.services.topics.find(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
        table = self.offsets.offset_table
        # RocketMQ stores the offset of any queue id, so the number of ids that no queue has is bounded.
        row = table.get(f"{topic}@{group}", {})
        if queue_id not in row and len(row) >= UNKNOWN_QUEUES_MAX and not self.has_queue(topic, queue_id):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the group has committed offsets of too many queues that the topic lacks: topic={topic!r} "
                f"queue_id={queue_id} unknown_queues_max={UNKNOWN_QUEUES_MAX}",
            )
        if len(table) >= ROWS_MAX and f"{topic}@{group}" not in table:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"too many groups have committed offsets of too many topics: rows_max={ROWS_MAX}",
            )
        self.offsets.commit_offset(group, topic, queue_id, offset)
        return RemotingCommand(SUCCESS)

    def max_offset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_MAX_OFFSET; `committed=false` asks for what is put, of which the view may not know yet."""
        del connection
        topic, queue_id = queue_of(request)
        _, high = self.range_of(topic, queue_id)
        if not truth(request.ext_fields, "committed", True):
            high = max(high, self.services.store.next_queue_offset(topic, queue_id))
        return RemotingCommand(SUCCESS, {"offset": str(high)})

    def min_offset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_MIN_OFFSET."""
        del connection
        low, _ = self.range_of(*queue_of(request))
        return RemotingCommand(SUCCESS, {"offset": str(low)})

    def by_time(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer SEARCH_OFFSET_BY_TIMESTAMP. Reads the log."""
        del connection
        topic, queue_id = queue_of(request)
        timestamp = whole(request.ext_fields, "timestamp", is_long=True)
        if not self.has_queue(topic, queue_id):
            return RemotingCommand(SUCCESS, {"offset": "0"})
        upper = request.ext_fields.get("boundaryType", "").lower() == "upper"
        with self.engine.slow_reader.reading() as reader:
            offset = reader.offset_by_time(
                topic, queue_id, timestamp, BoundaryType.UPPER if upper else BoundaryType.LOWER
            )
        return RemotingCommand(SUCCESS, {"offset": str(offset)})

    def earliest_time(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_EARLIEST_MSG_STORETIME. Reads the log."""
        del connection
        topic, queue_id = queue_of(request)
        low, high = self.range_of(topic, queue_id)
        timestamp = -1
        if low < high:
            with self.engine.slow_reader.reading() as reader:
                timestamp = reader.queue(topic, queue_id).store_timestamp(low)
        return RemotingCommand(SUCCESS, {"timestamp": str(timestamp)})

    def all_offsets(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer GET_ALL_CONSUMER_OFFSET."""
        del request, connection
        return RemotingCommand(SUCCESS, body=encode_json(self.offsets.write_fields()))

    def view_message(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer VIEW_MESSAGE_BY_ID. Reads the log.

        Raises:
            RequestRefused: the account may not read the record's topic.
        """
        offset = whole(request.ext_fields, "offset", is_long=True)
        try:
            with self.engine.slow_reader.reading() as reader:
                store = reader.store
                record = store.record_at(offset) if offset >= 0 else None
                data = b"" if record is None else store.read_log(offset, record.record_size)
        except (DamagedStore, OffsetOutOfRange):
            record, data = None, b""
        if record is None or not data:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        if self.access is not None:
            self.access.check_record(connection, request, record)
        return RemotingCommand(SUCCESS, body=data)

    def query_message(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer QUERY_MESSAGE: messages by key, the newest first. Reads the log."""
        del connection
        fields = request.ext_fields
        topic, key, count_max = text(fields, "topic"), text(fields, "key"), whole(fields, "maxNum")
        begin, end = (whole(fields, name, is_long=True) for name in ("beginTimestamp", "endTimestamp"))
        if truth(fields, "_UNIQUE_KEY_QUERY"):
            count_max = self.engine.settings.default_query_max_num
        count_max = max(0, min(count_max, self.engine.settings.max_msgs_num_batch))
        with self.engine.slow_reader.reading() as reader:
            found = reader.index.query_message(topic, key, count_max, max(begin, 0), end)
            data: list[bytes] = []
            size = 0
            for record in reversed(found.records):
                size += record.record_size
                if data and size > QUERY_SIZE_MAX:
                    break
                data.append(reader.store.read_log(record.commit_log_offset, record.record_size))
        answer = {
            "indexLastUpdateTimestamp": str(found.index_last_update_timestamp),
            "indexLastUpdatePhyoffset": str(found.index_last_update_offset),
        }
        if not data:
            remark = "can not find message, maybe time range not correct"
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, answer, remark=remark)
        return RemotingCommand(SUCCESS, answer, data)

    # What queues hold.

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset of a queue, and the one behind its last; (0, 0): it is empty, or unknown."""
        # A reader keeps a small state for each queue that it reads.
        if not self.has_queue(topic, queue_id):
            return 0, 0
        with self.engine.read_lock:
            return self.engine.reader.queue_range(topic, queue_id)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a topic has a queue."""
        config = self.services.topics.find(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def begins_in_memory(self, topic: str, queue_id: int, queue_offset_max: int) -> bool:
        """Return whether a queue's first message lies so near the log's end that it counts as in memory."""
        if queue_offset_max == 0:
            # Messages may have been put that the consume queue does not have yet. A consumer that were told of an empty
            # queue would then ask for its end, and begin behind them.
            return self.engine.writer.queue_offsets.next_offset(topic, queue_id) > 0
        with self.engine.read_lock:
            unit = self.engine.reader.queue(topic, queue_id).units.unit(0)
        behind = self.services.pull_service.limits.memory_size
        return unit is not None and self.engine.writer.appended - unit[0] <= behind


def queue_of(request: RemotingCommand) -> tuple[str, int]:
    """Return the queue that a request names."""
    return text(request.ext_fields, "topic"), whole(request.ext_fields, "queueId")
