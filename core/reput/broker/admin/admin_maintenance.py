"""AdminMaintenanceProcessor: removes unused queues and offsets, and resumes transactions that were given up.

Source: RocketMQ broker, AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reput.embedded.store_engine import StoreEngine
from reput.errors import RequestRefused, StoreError
from reput.remoting.connection import Connection
from reput.remoting.custom_header import text
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.remoting_server import Processor
from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode

__all__ = ["AdminMaintenanceProcessor"]

SUCCESS = ResponseCode.SUCCESS

logger = logging.getLogger(__name__)


class AdminMaintenanceProcessor:
    """Every request runs in a thread, because it reads the disk."""

    def __init__(self, engine: StoreEngine) -> None:
        self.engine = engine

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request code."""
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: Processor(self.clean, in_thread=True),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Processor(self.nothing_left),
            RequestCode.CLEAN_UNUSED_TOPIC: Processor(self.nothing_left),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: Processor(self.resume_check, in_thread=True),
        }

    def clean(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer DELETE_EXPIRED_COMMITLOG: remove old segments now instead of at the usual hour."""
        del request
        fates = self.engine.writer.retention.clean()
        logger.info(
            "old segments are removed on request: count=%d peer=%s", sum(fate.goes for fate in fates), connection.peer
        )
        return RemotingCommand(SUCCESS)

    def nothing_left(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer CLEAN_EXPIRED_CONSUMEQUEUE and CLEAN_UNUSED_TOPIC.

        A queue's files are removed together with the segments that they point into, and a topic that has messages is in
        use even without a description. So there is never anything left to remove.
        """
        del request, connection
        return RemotingCommand(SUCCESS)

    def resume_check(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Answer RESUME_CHECK_HALF_MESSAGE: check a half message again that has used up its checks."""
        del connection
        message_id = text(request.ext_fields, "msgId")
        with self.engine.read_lock:
            record = self.engine.reader.store.record_of_id(message_id)
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no such message: message_id={message_id!r}")
        try:
            self.engine.transactions.resume(record)
        except StoreError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return RemotingCommand(SUCCESS)
