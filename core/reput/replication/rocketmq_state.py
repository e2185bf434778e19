"""RocketmqState: what RocketMQ keeps beside the log and reput does not use: it is copied, and given on to slaves.

    402  config/messageRequestMode.json   {"messageRequestModeMap":{}}            groups that pop
    61   config/timermetrics              {"dataVersion":{…},"timingCount":{}}    messages in the timer wheel, by topic
    60   config/timercheck                seven longs, big-endian

        at  size  field                     meaning
         0     8  last_read_time            the wheel was read up to here, in milliseconds
         8     8  timer_log_flushed         byte position in the broker's own timer log
        16     8  timer_queue_offset        the broker's own place in the timer's queue
        24     8  master_queue_offset       its master's place there
        32    24  data version              state version, timestamp, counter

A store without these files has no message in a timer wheel and no group that pops.

Source: RocketMQ broker 5, SlaveSynchronize and MessageRequestModeManager; store, TimerCheckpoint and TimerMetrics.
"""

from __future__ import annotations

import time
from pathlib import Path
from struct import Struct, error

import msgspec

from reput.errors import BrokerError
from reput.remoting.request_code import RequestCode
from reput.store.disk.files import Files

__all__ = ["RocketmqState"]

CHECKPOINT = Struct(">7q")
NAMES = {
    int(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE): "messageRequestMode.json",
    int(RequestCode.GET_TIMER_METRICS): "timermetrics",
    int(RequestCode.GET_TIMER_CHECK_POINT): "timercheck",
}


class RocketmqState:
    """The files of one store, read and written as a whole."""

    def __init__(self, store_directory: Path, started: int) -> None:
        """*started* is the time, in milliseconds, of the version of what has never changed."""
        self.directory = store_directory / "config"
        self.started = started

    def body(self, code: int) -> bytes:
        """Return the answer's body to one of the three requests.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            data = (self.directory / NAMES[code]).read_bytes()
        except FileNotFoundError:
            data = b""
        if code == RequestCode.GET_TIMER_CHECK_POINT:
            # RocketMQ maps a page of it.
            return data[: CHECKPOINT.size] if len(data) >= CHECKPOINT.size else self.empty_checkpoint()
        return data or self.empty_text(code)

    def empty_checkpoint(self) -> bytes:
        """Return the checkpoint of a wheel that holds no message: nothing is due that was not delivered."""
        return CHECKPOINT.pack(int(time.time()) * 1000, 0, 0, 0, 0, self.started, 0)

    def empty_text(self, code: int) -> bytes:
        """Return the JSON of a broker with an empty wheel and without groups that pop."""
        if code == RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
            return b'{"messageRequestModeMap":{}}'
        version = {"counter": 0, "stateVersion": 0, "timestamp": self.started}
        return msgspec.json.encode({"dataVersion": version, "timingCount": {}})

    def take(self, code: int, body: bytes, files: Files) -> None:
        """Keep a master's answer, as its slaves do.

        Raises:
            BrokerError: the body has another shape.
            StoreError: the disk refuses.
        """
        if code == RequestCode.GET_TIMER_CHECK_POINT:
            try:
                read_time, _, _, queue_offset, *version = CHECKPOINT.unpack(body)
            except error:
                raise BrokerError(f"the master's timer checkpoint has another size: size={len(body)}") from None
            # The timer log and the place in its queue are the master's; this store has no timer log.
            body = CHECKPOINT.pack(read_time, 0, 0, queue_offset, *version)
        path = self.directory / NAMES[code]
        if not path.exists() or path.read_bytes() != body:
            files.make_directory(self.directory)
            files.replace(path, body)
