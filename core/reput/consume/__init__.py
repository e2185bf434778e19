"""Consuming: consumer groups, their filters and offsets; and the messages of a topic in log order.

    Store ──▶ ConsumeServices ──▶ Consumer            at least once, shared among the consumers of a group
                   │
                   ├─ Topics, SubscriptionGroups, ConsumerFilters, offsets     config/*.json
                   ├─ PullService                      the checks and answers of a broker
                   └─ HoldService                      waits for messages

    Store ──▶ ScheduleService, send_back, TransactionService     delayed, retried and transactional messages

    open store ─────────────────────────▶ TopicReader ──▶ records in log order
    store not open ──▶ GroupReading ──▶ TopicReader, and offsets of a group

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from reput.consume.administration.group_reading import GroupReading as GroupReading
    from reput.consume.delivery.transaction_messages import HalfMessage as HalfMessage
    from reput.consume.delivery.transaction_messages import TransactionState as TransactionState
    from reput.consume.delivery.transaction_service import TransactionService as TransactionService
    from reput.consume.groups.consumer import Consumer as Consumer
    from reput.consume.pull.pull_service import PullRequest as PullRequest
    from reput.consume.pull.pull_service import PullResult as PullResult
    from reput.consume.pull.pull_service import PullService as PullService
    from reput.consume.pull.topic_reader import Beginning as Beginning
    from reput.consume.pull.topic_reader import MessageSource as MessageSource
    from reput.consume.pull.topic_reader import TopicReader as TopicReader
    from reput.consume.pull.topic_reader import first_queue_offset as first_queue_offset
    from reput.consume.registry.subscription import Filter as Filter
    from reput.consume.registry.subscription import Subscription as Subscription
    from reput.consume.registry.subscription import subscribe as subscribe
    from reput.consume.services import ConsumeServices as ConsumeServices
    from reput.remoting.response_code import ResponseCode as ResponseCode
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "reput.consume.administration.group_reading": ("GroupReading",),
            "reput.consume.delivery.transaction_messages": ("HalfMessage", "TransactionState"),
            "reput.consume.delivery.transaction_service": ("TransactionService",),
            "reput.consume.groups.consumer": ("Consumer",),
            "reput.consume.pull.pull_service": (
                "PullRequest",
                "PullResult",
                "PullService",
            ),
            "reput.consume.pull.topic_reader": (
                "Beginning",
                "MessageSource",
                "TopicReader",
                "first_queue_offset",
            ),
            "reput.remoting.response_code": ("ResponseCode",),
            "reput.consume.registry.subscription": (
                "Filter",
                "Subscription",
                "subscribe",
            ),
            "reput.consume.services": ("ConsumeServices",),
        },
    )
