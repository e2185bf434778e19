"""carried_message: a stored message put once more, under another topic, as RocketMQ's services do it.

Delivering a delayed message, sending one back, committing a half message: the body, the user's flag, the birth and the
properties go with it. What has an empty value is left behind, as in RocketMQ, whose reader of properties knows none,
and so is the CRC of the former record.

Source: RocketMQ broker, ScheduleMessageService.messageTimeUp, AbstractSendMessageProcessor.consumerSendMsgBack,
EndTransactionProcessor.endMessageTransaction.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.store.record.message import MessageExtBrokerInner
from reput.store.record.properties import filled_properties
from reput.store.record.record import CRC_NAME, encode_address
from reput_hooks import Record

__all__ = ["carried_message", "carried_properties"]


def carried_properties(record: Record) -> dict[str, str]:
    """Return the properties of *record* that go with it, in stored order."""
    return {name: value for name, value in filled_properties(record.properties).items() if name != CRC_NAME}


def carried_message(
    record: Record, topic: str, queue_id: int, properties: Mapping[str, str], *, keeps_store_host: bool = True
) -> MessageExtBrokerInner:
    """Return *record* as a message for *topic*, with these properties.

    Args:
        keeps_store_host: the new record names the broker that stored the former one; else the store's own.
    """
    return MessageExtBrokerInner(
        topic,
        record.body,
        properties=properties,
        flag=record.flag,
        queue_id=queue_id,
        born_timestamp=record.born_timestamp,
        born_host=encode_address(record.born_host),
        store_host=encode_address(record.store_host) if keeps_store_host else None,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )
