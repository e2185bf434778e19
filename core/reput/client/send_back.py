"""SendBack: sends messages back that a consumer could not handle.

    CONSUMER_SEND_MSG_BACK ──▶ the broker copies its own record to the group's retry topic
            └─ refused, no answer ──▶ SEND_MESSAGE to the retry topic: a copy of what the consumer has, to any broker

Source: RocketMQ client, DefaultMQPushConsumerImpl.sendMessageBack.
"""

from __future__ import annotations

import logging

from reput.client.queue_requests import QueueRequests
from reput.client.sender import Sender
from reput.client.sending import BODY_SIZE_MAX, Outcome, Sending
from reput.consume.delivery.carried_message import carried_properties
from reput.consume.delivery.send_back import FIRST_DELAY_LEVEL
from reput.consume.registry.topics import RETRY_PREFIX
from reput.errors import BrokerError, MessageIllegal, RequestRefused
from reput.remoting.message_queue import MessageQueue
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode
from reput.store.record.properties import encode_properties
from reput_hooks import Record

__all__ = ["SendBack"]

TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class SendBack:
    """Used in the thread of its session's loop only."""

    def __init__(self, requests: QueueRequests) -> None:
        self.requests = requests
        self.group = requests.group
        self.sender = Sender(requests.session, TIMEOUT_S)

    async def send_back(
        self, queue: MessageQueue, record: Record, delay_level: int, max_reconsume_times: int | None
    ) -> None:
        """Send a message back to its broker, or else a copy of it to any broker of the group's retry topic.

        Raises:
            RequestRefused: the broker refuses, and so it is with the copy.
            BrokerError: no broker can be reached, or none can store the copy now.
        """
        try:
            await self.ask(queue, record, delay_level, max_reconsume_times)
        except (RequestRefused, BrokerError) as error:
            # Retention may have deleted the record at the broker.
            logger.info("a message cannot be sent back, so a copy is sent: group=%s error=%s", self.group, error)
            try:
                await self.send_copy(record, delay_level, max_reconsume_times)
            except (MessageIllegal, RequestRefused, BrokerError) as of_copy:
                logger.info("the copy cannot be sent: group=%s error=%s", self.group, of_copy)
                if isinstance(error, RequestRefused) and error.response_code == ResponseCode.SYSTEM_ERROR:
                    # The code of all that goes wrong at a broker, such as a full disk.
                    raise BrokerError(
                        f"the broker has not stored the copy: {error}", "Send the message back later."
                    ) from None
                raise error from None

    async def ask(self, queue: MessageQueue, record: Record, delay_level: int, max_reconsume_times: int | None) -> None:
        """Let the broker of a message send it back."""
        fields = {
            "offset": str(record.commit_log_offset),
            "group": self.group,
            "delayLevel": str(delay_level),
            "originMsgId": record.message_id,
            "originTopic": record.topic,
            "unitMode": "false",
            "bname": queue.broker_name,
        }
        if max_reconsume_times is not None:
            fields["maxReconsumeTimes"] = str(max_reconsume_times)
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        await self.requests.session.request(self.requests.master(queue), command, TIMEOUT_S)

    async def send_copy(self, record: Record, delay_level: int, max_reconsume_times: int | None) -> None:
        """Send a copy of a message to the retry topic.

        Raises:
            MessageIllegal: the body, which was compressed when it was stored, is too long.
        """
        stored = self.sender.loop.create_future()
        self.sender.put(retry_copy(self.group, record, delay_level, max_reconsume_times, stored))
        await stored


def retry_copy(
    group: str, record: Record, delay_level: int, max_reconsume_times: int | None, outcome: Outcome
) -> Sending:
    """Return the copy to send of a message, which is delivered later, or is a dead letter.

    Raises:
        MessageIllegal: the body is too long.
    """
    if len(record.body) > BODY_SIZE_MAX:
        raise MessageIllegal(f"body is too long: body_size={len(record.body)} max_message_size={BODY_SIZE_MAX}")
    properties = carried_properties(record)
    for name in ("TRAN_MSG", "DELAY"):
        properties.pop(name, None)
    properties.setdefault("RETRY_TOPIC", record.topic)
    properties.setdefault("ORIGIN_MESSAGE_ID", record.message_id)
    if delay_level < 0:
        # The broker makes a dead letter of it at once.
        max_reconsume_times = 0
    else:
        properties["DELAY"] = str(delay_level or FIRST_DELAY_LEVEL + record.reconsume_times)
    return Sending(
        outcome,
        group,
        RETRY_PREFIX + group,
        record.body,
        encode_properties(properties),
        record.flag,
        queue_id=None,
        sharding_key=None,
        uniq_key=record.uniq_key or "",
        is_alone=True,
        reconsume_times=record.reconsume_times + 1,
        max_reconsume_times=max_reconsume_times,
    )
