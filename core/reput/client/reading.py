"""Reading: messages by queue and by key, through brokers.

Source: RocketMQ client, MQAdminImpl.queryMessage and DefaultMQPullConsumerImpl.
"""

from __future__ import annotations

from reput.client.answers import number_of
from reput.client.received import records_of
from reput.client.routes import Route, refused
from reput.client.session import Session
from reput.errors import ConfigError, RequestRefused
from reput.filter import TagFilter
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.reader.results import GetMessageResult, GetMessageStatus, Records, with_exact_tags
from reput.store.record.record import OFFSET_DIGITS, decode_host, decode_message_id
from reput.store.record.sent_record import sent_record
from reput_hooks import Record

__all__ = ["TIMESTAMP_MAX", "get_messages", "query_messages"]

# The group under which RocketMQ's tools pull.
GROUP = "TOOLS_CONSUMER"
SUBSCRIPTION_FLAG = 4
PULL_COUNT_MAX = 32
# The beginning of the remark with which brokers say that there is no message with an id.
NO_MESSAGE = "can not find message by the offset"
TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF
STATUSES = {
    ResponseCode.SUCCESS: GetMessageStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: GetMessageStatus.OFFSET_OVERFLOW_ONE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: GetMessageStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: GetMessageStatus.OFFSET_OVERFLOW_BADLY,
}


async def route_of(session: Session, topic: str) -> Route:
    """Return the route of a topic.

    Raises:
        RequestRefused: TOPIC_NOT_EXIST.
    """
    route = await session.routes.refresh(topic)
    if route is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic does not exist: topic={topic!r}")
    return route


async def get_messages(
    session: Session,
    topic: str,
    queue_id: int,
    queue_offset: int,
    count_max: int,
    tags: TagFilter,
    broker_name: str | None,
) -> GetMessageResult:
    """Return messages of one queue of one broker, from an offset on.

    Raises:
        ConfigError: several brokers have the queue, and *broker_name* is None.
        RequestRefused: the topic does not exist, or has no such queue.
        BrokerError: the broker cannot be reached.
    """
    route = await route_of(session, topic)
    brokers = [queue.broker_name for queue in route.readable() if queue.queue_id == queue_id]
    if broker_name is None and len(brokers) > 1:
        raise ConfigError(
            f"several brokers have the queue: topic={topic!r} queue_id={queue_id} broker_names={','.join(brokers)}",
            "Give broker_name.",
        )
    name = broker_name or (brokers[0] if brokers else None)
    if name is None or name not in route.masters:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"no broker has the queue: topic={topic!r} queue_id={queue_id} broker_name={broker_name}",
        )
    data: list[bytes] = []
    while True:
        remaining = count_max - len(data)
        pulled = await pull(session, route.masters[name], topic, queue_id, queue_offset, remaining, tags.expression)
        result = with_exact_tags(pulled, tags)
        data += result.records.data
        queue_offset = result.next_queue_offset
        is_over = len(data) >= count_max or queue_offset >= result.queue_offset_max
        if is_over or result.status not in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE):
            status = GetMessageStatus.FOUND if data else result.status
            return GetMessageResult(
                status, queue_offset, result.queue_offset_min, result.queue_offset_max, Records(data)
            )


async def pull(
    session: Session, broker: str, topic: str, queue_id: int, queue_offset: int, count_max: int, tags: str
) -> GetMessageResult:
    """Return the result of one pull."""
    command = RemotingCommand(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(min(count_max, PULL_COUNT_MAX)),
            "sysFlag": str(SUBSCRIPTION_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": tags,
            "subVersion": "0",
            "expressionType": "TAG",
        },
    )
    response = await session.invoke(broker, command)
    status = STATUSES.get(ResponseCode(response.code)) if response.code in STATUSES else None
    if status is None:
        raise refused(response)
    if response.remark is not None and response.remark in GetMessageStatus.__members__:
        status = GetMessageStatus[response.remark]
    following, low, high = (number_of(response, name) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
    return GetMessageResult(status, following, low, high, Records(list(records_of(response.body_bytes))))


async def query_messages(
    session: Session, topic: str | None, key: str, count_max: int, begin: int, end: int
) -> list[Record]:
    """Return the newest messages with a key or a message id, in the order of their store times.

    Raises:
        RequestRefused: the topic does not exist, or a broker refuses.
        BrokerError: a broker cannot be reached.
    """
    if topic is None:
        record = await view_message(session, key)
        return [record] if record is not None and count_max and begin <= record.store_timestamp <= end else []
    route = await route_of(session, topic)
    found: list[Record] = []
    for broker in route.masters.values():
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin),
            "endTimestamp": str(end),
        }
        response = await session.invoke(broker, RemotingCommand(RequestCode.QUERY_MESSAGE, fields))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        if response.code != ResponseCode.SUCCESS:
            raise refused(response)
        records = map(sent_record, records_of(response.body_bytes))
        # The broker's index has only hashes, so the result may include other keys. reput's brokers know ids as keys.
        found += [record for record in records if record.topic == topic and has_key(record, key)]
    found.sort(key=lambda record: (record.store_timestamp, record.commit_log_offset))
    return found[-count_max:] if count_max else []


def has_key(record: Record, key: str) -> bool:
    """Return whether a message has a key, a unique key, or a message id in either case of letters."""
    properties = record.properties
    if key in properties.get("KEYS", "").split(" ") or properties.get("UNIQ_KEY") == key:
        return True
    return record.message_id == key.upper()


async def view_message(session: Session, message_id: str) -> Record | None:
    """Return the message with an id from the broker that the id names; None: there is none.

    Raises:
        RequestRefused: the broker refuses.
        BrokerError: the broker cannot be reached.
    """
    offset = decode_message_id(message_id)
    assert offset is not None
    broker = decode_host(bytes.fromhex(message_id[:-OFFSET_DIGITS]))
    response = await session.invoke(broker, RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
    if response.code == ResponseCode.SUCCESS:
        return sent_record(response.body_bytes)
    # The code is that of any error.
    if response.code == ResponseCode.SYSTEM_ERROR and (response.remark or "").startswith(NO_MESSAGE):
        return None
    raise refused(response)
