"""ResponseCode: the outcome codes of a broker's answers.

Source: RocketMQ, RemotingSysResponseCode and ResponseCode.
"""

from __future__ import annotations

import enum

__all__ = ["ADVICE_FIELD", "AWAY_FIELD", "ResponseCode"]


class ResponseCode(enum.IntEnum):
    """The outcome of a request, named as in RocketMQ."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500

    @property
    def advice(self) -> str:
        """Default advice for a refusal with this code, used if the refusal itself has none."""
        return ADVICE.get(self, "")


# The field of a response in which reput's brokers say what to do about a refusal.
ADVICE_FIELD = "reputAdvice"
# The field of a refusal with which reput's brokers say that they stop, or are not the master any more.
AWAY_FIELD = "reputAway"
ADVICE = {
    ResponseCode.NO_PERMISSION: "See `reput topic list STORE` and `reput group list STORE` for their permissions.",
    ResponseCode.TOPIC_NOT_EXIST: "See `reput topic list STORE` for the existing topics.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "See `reput group list STORE` for the existing groups.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "Subscribe first: make a consumer of the group for the topic.",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "Register the newer subscription first; consumers do so by themselves.",
    ResponseCode.FILTER_DATA_NOT_EXIST: "Register the filter first; consumers do so by themselves.",
    ResponseCode.FILTER_DATA_NOT_LATEST: "Register the newer filter first; consumers do so by themselves.",
    ResponseCode.INVALID_PARAMETER: "Correct the named value.",
}
