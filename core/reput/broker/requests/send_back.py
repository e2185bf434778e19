"""SendBackProcessor: messages that a consumer could not handle. It runs in threads.

Source: RocketMQ broker, SendMessageProcessor.asyncConsumerSendMsgBack.
"""

from __future__ import annotations

from reput.access.access_control import AccessControl
from reput.consume.delivery.send_back import send_back
from reput.embedded.store_engine import StoreEngine
from reput.errors import DamagedStore, OffsetOutOfRange, RequestRefused, StoreError
from reput.remoting.connection import Connection
from reput.remoting.custom_header import optional_whole, text, truth, whole
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.response_code import ResponseCode

__all__ = ["SendBackProcessor"]

# From this client version on, the broker respects the maximum number of deliveries that the client names.
MAX_RECONSUME_VERSION = 121


class SendBackProcessor:
    """Any thread may call."""

    def __init__(self, engine: StoreEngine, access: AccessControl | None = None) -> None:
        """*access* decides which records a client may send back; None: all."""
        self.engine = engine
        self.access = access

    def send_back(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer CONSUMER_SEND_MSG_BACK.

        Raises:
            RequestRefused: there is no such group or record, the account may not read the record, or the copy is not
                stored.
        """
        fields = request.ext_fields
        offset = whole(fields, "offset", is_long=True)
        group = text(fields, "group")
        level = whole(fields, "delayLevel")
        times_max = None
        if request.version >= MAX_RECONSUME_VERSION and "maxReconsumeTimes" in fields:
            times_max = optional_whole(fields, "maxReconsumeTimes", 0)
        self.engine.services.groups.require(group)
        try:
            with self.engine.slow_reader.reading() as reader:
                record = reader.store.record_at(offset) if offset >= 0 else None
        except (DamagedStore, OffsetOutOfRange):
            record = None
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        if self.access is not None:
            # The copy goes to the group, which reads it.
            self.access.check_record(connection, request, record)
        try:
            send_back(self.engine, group, record, level, times_max, unit_mode=truth(fields, "unitMode"))
        except StoreError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return RemotingCommand(ResponseCode.SUCCESS)
