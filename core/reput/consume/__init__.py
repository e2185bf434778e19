"""Who reads: consumer groups, their filters and offsets; and the messages of a topic in the order of the log.

    Store ──▶ ConsumeServices ──▶ Consumer            at least once, shared among the consumers of a group
                   │
                   ├─ Topics, SubscriptionGroups, ConsumerFilters, offsets     config/*.json
                   ├─ PullService                      every check and answer of a broker's
                   └─ HoldService                      waits for messages

    Store ──▶ ScheduleService, send_back, TransactionService     what comes later, again, or only if its sender says so

    store that was opened ────────────────────────────▶ TopicReader ──▶ records in the order of the log
    store that nobody has open ──▶ GroupReading ──▶ TopicReader, and offsets of a group

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.consume.administration.group_reading import GroupReading
    from reput.consume.delivery.transaction_messages import HalfMessage, TransactionState
    from reput.consume.delivery.transaction_service import TransactionService
    from reput.consume.groups.consumer import Consumer
    from reput.consume.pull.pull_service import PullRequest, PullResult, PullService
    from reput.consume.pull.topic_reader import Beginning, MessageSource, TopicReader, first_queue_offset
    from reput.consume.registry.response_code import ResponseCode
    from reput.consume.registry.subscription import Filter, Subscription, subscribe
    from reput.consume.services import ConsumeServices

# Where each public name lives.
HOMES = {
    "Beginning": "reput.consume.pull.topic_reader",
    "ConsumeServices": "reput.consume.services",
    "Consumer": "reput.consume.groups.consumer",
    "Filter": "reput.consume.registry.subscription",
    "GroupReading": "reput.consume.administration.group_reading",
    "HalfMessage": "reput.consume.delivery.transaction_messages",
    "MessageSource": "reput.consume.pull.topic_reader",
    "PullRequest": "reput.consume.pull.pull_service",
    "PullResult": "reput.consume.pull.pull_service",
    "PullService": "reput.consume.pull.pull_service",
    "ResponseCode": "reput.consume.registry.response_code",
    "Subscription": "reput.consume.registry.subscription",
    "TopicReader": "reput.consume.pull.topic_reader",
    "TransactionService": "reput.consume.delivery.transaction_service",
    "TransactionState": "reput.consume.delivery.transaction_messages",
    "first_queue_offset": "reput.consume.pull.topic_reader",
    "subscribe": "reput.consume.registry.subscription",
}

__all__ = [
    "Beginning",
    "ConsumeServices",
    "Consumer",
    "Filter",
    "GroupReading",
    "HalfMessage",
    "MessageSource",
    "PullRequest",
    "PullResult",
    "PullService",
    "ResponseCode",
    "Subscription",
    "TopicReader",
    "TransactionService",
    "TransactionState",
    "first_queue_offset",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    home = HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'reput.consume' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
