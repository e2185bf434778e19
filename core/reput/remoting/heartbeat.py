"""The bodies with which clients announce themselves to a broker: HEART_BEAT and CHECK_CLIENT_CONFIG.

Source: RocketMQ remoting, HeartbeatData, ConsumerData, ProducerData, SubscriptionData and CheckClientRequestBody.
"""

from __future__ import annotations

import msgspec

__all__ = ["CheckClientBody", "ConsumerData", "HeartbeatData", "ProducerData", "SubscriptionData"]


class SubscriptionData(msgspec.Struct, rename="camel", omit_defaults=False):
    """A subscription as clients send it."""

    topic: str = ""
    sub_string: str | None = "*"
    expression_type: str | None = "TAG"
    sub_version: int = 0
    class_filter_mode: bool = False
    tags_set: list[str] | None = None
    code_set: list[int] | None = None


class ConsumerData(msgspec.Struct, rename="camel"):
    """A consumer group of a client."""

    group_name: str
    consume_type: str | None = "CONSUME_PASSIVELY"
    message_model: str | None = "CLUSTERING"
    consume_from_where: str | None = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel"):
    """A producer group of a client."""

    group_name: str


class HeartbeatData(msgspec.Struct):
    """The body of HEART_BEAT."""

    client_id: str = msgspec.field(name="clientID")
    producers: list[ProducerData] | None = msgspec.field(name="producerDataSet", default=None)
    consumers: list[ConsumerData] | None = msgspec.field(name="consumerDataSet", default=None)


class CheckClientBody(msgspec.Struct, rename="camel"):
    """The body of CHECK_CLIENT_CONFIG."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
