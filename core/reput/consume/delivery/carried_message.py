"""carried_message: a stored message put once more, under another topic, as RocketMQ's services do it.

Used to deliver a delayed message, send one back, or commit a half message. The copy keeps body, user flag, birth and
properties. It drops properties with an empty value, as in RocketMQ, whose property parser ignores them, and the CRC of
the former record.

Source: RocketMQ broker, ScheduleMessageService.messageTimeUp, AbstractSendMessageProcessor.consumerSendMsgBack,
EndTransactionProcessor.endMessageTransaction.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.store.record.message import MessageExtBrokerInner
from reput.store.record.properties import filled_properties
from reput.store.record.record import CRC_NAME, encode_address
from reput.store.record.sent_record import stored_body
from reput_hooks import Record

__all__ = ["carried_message", "carried_properties"]


def carried_properties(record: Record) -> dict[str, str]:
    """Return the properties that a copy of *record* keeps, in stored order."""
    return {name: value for name, value in filled_properties(record.properties).items() if name != CRC_NAME}


def carried_message(
    record: Record, topic: str, queue_id: int, properties: Mapping[str, str], *, keeps_store_host: bool = True
) -> MessageExtBrokerInner:
    """Return *record* as a message for *topic*, with these properties.

    Args:
        keeps_store_host: the new record keeps the store host of the former one; otherwise it gets this store's own.
    """
    body, sys_flag = stored_body(record)
    return MessageExtBrokerInner(
        topic,
        body,
        properties=properties,
        flag=record.flag,
        queue_id=queue_id,
        born_timestamp=record.born_timestamp,
        born_host=encode_address(record.born_host),
        store_host=encode_address(record.store_host) if keeps_store_host else None,
        sys_flag=sys_flag,
        reconsume_times=record.reconsume_times,
    )
