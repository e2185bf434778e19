"""RowFormat: which columns a row of the log has, and their Arrow types.

Names and types are those of Spark's Kafka source (``kafka``) or RocketMQ's fields (``rocketmq``, the default):

    rocketmq                                                       kafka
    topic, queueId, queueOffset, commitLogOffset, storeSize,       key: KEYS, value: body, topic, partition: queueId,
    msgId: UNIQ_KEY, else offsetMsgId, offsetMsgId, tags, keys,    offset: queueOffset, timestamp, timestampType,
    body, properties, flag, sysFlag, bodyCRC, reconsumeTimes,      headers: properties, if requested
    bornTimestamp, storeTimestamp, bornHost, storeHost,
    preparedTransactionOffset, brokerName

Every column is nullable, so that a schema read back from any format compares equal. Times are microseconds, UTC; a time
outside of the years 1 to 9999 is null.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

from reput.errors import ConfigError

__all__ = ["HEADERS_TYPE", "PROPERTIES_TYPE", "TIMESTAMP_TYPE", "RowFormat"]

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

ROCKETMQ_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "commitLogOffset": pa.int64(),
    "storeSize": pa.int32(),
    "msgId": pa.string(),
    "offsetMsgId": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "body": pa.binary(),
    "properties": PROPERTIES_TYPE,
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "bornTimestamp": TIMESTAMP_TYPE,
    "storeTimestamp": TIMESTAMP_TYPE,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "preparedTransactionOffset": pa.int64(),
    "brokerName": pa.string(),
}
KAFKA_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestampType": pa.int32(),
}


class RowFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a record becomes a row.

    Attributes:
        schema_mode: "rocketmq" or "kafka", as in the module's table.
        columns: names to keep, in this order; None: all of the mode.
        properties_format: "map"; "json": one object; "string": as stored, ``name 0x01 value 0x02 …``.
        decompress: unpack bodies. A body that does not unpack as its flags say stays as stored; its ``bodyCRC`` then
            matches it.
        include_headers: add ``headers`` to ``kafka``.
        timestamp_column: the time in the column ``timestamp`` of ``kafka``.
        broker_name: fills ``brokerName``.
    """

    schema_mode: Literal["rocketmq", "kafka"] = "rocketmq"
    columns: tuple[str, ...] | None = None
    properties_format: Literal["map", "json", "string"] = "map"
    decompress: bool = True
    include_headers: bool = False
    timestamp_column: Literal["store", "born"] = "store"
    broker_name: str | None = None

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows.

        Raises:
            ConfigError: a name in *columns* is not a column of this mode.
        """
        types = dict(ROCKETMQ_TYPES if self.schema_mode == "rocketmq" else KAFKA_TYPES)
        if self.schema_mode == "rocketmq" and self.properties_format != "map":
            types["properties"] = pa.string()
        if self.schema_mode == "kafka" and self.include_headers:
            types["headers"] = HEADERS_TYPE
        names = tuple(types) if self.columns is None else self.columns
        for name in names:
            if name not in types:
                raise ConfigError(
                    f"no such column: column={name} schema_mode={self.schema_mode} columns={','.join(types)}"
                )
        return pa.schema([pa.field(name, types[name]) for name in names])
