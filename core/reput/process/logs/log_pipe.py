"""Logging in a dispatcher's process: JSON lines into a pipe, which never blocks the dispatcher.

If the pipe does not accept a line, the line is dropped and counted; the next line that goes through reports the count.
Processes that the plugin forks send their records to the dispatcher's process (`multiprocessing_logging`, from the
first fork on). Its own records bypass that queue, so a forked process that dies while it writes to the queue silences
at most its siblings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import msgspec

__all__ = ["LogLine", "PipeHandler", "as_utf8", "install"]

LINE_SIZE_MAX = 64 << 10


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the group's log.

    Attributes:
        time: ms since 1970 UTC.
        process: process id.
        dispatcher: name, "" for the supervisor itself.
        commit_log_offset: the dispatcher's position.
        dropped: number of lines lost before this one.
        event: "running": `start` has returned. Such a line is not written to the log.
    """

    time: int
    level: str
    process: int
    dispatcher: str
    message: str
    logger: str = ""
    commit_log_offset: int | None = None
    exception: str | None = None
    dropped: int = 0
    event: str = ""


class PipeHandler(logging.Handler):
    """Writes lines to the non-blocking *descriptor*. *position* returns the dispatcher's position."""

    def __init__(self, descriptor: int, dispatcher: str, position: Callable[[], int | None]) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.dispatcher = dispatcher
        self.position = position
        self.process = os.getpid()
        self.dropped = 0
        # The rest of a line that the pipe accepted in part.
        self.rest = b""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            exception = record.exc_text
            if record.exc_info and not exception:
                exception = logging.Formatter().formatException(record.exc_info)
            line = LogLine(
                time=round(record.created * 1000),
                level=record.levelname,
                process=record.process or self.process,
                dispatcher=self.dispatcher,
                message=record.getMessage()[:LINE_SIZE_MAX],
                logger=record.name,
                commit_log_offset=self.position(),
                exception=exception[-LINE_SIZE_MAX:] if exception else None,
                dropped=self.dropped,
            )
        except Exception:
            # A wrong format string is the plugin's error; logging reports it on stderr.
            self.handleError(record)
            return
        self.write(line)

    def write(self, line: LogLine) -> None:
        """Write *line* whole, or count it as dropped."""
        # `multiprocessing_logging` calls `emit` from its own thread, without the lock.
        with self.lock or nullcontext():
            self.rest = self.push(self.rest)
            if not self.rest:
                data = encode_line(line) + b"\n"
                left = self.push(data)
                if len(left) < len(data):
                    self.rest = left
                    self.dropped = 0
                    return
            self.dropped += 1

    def push(self, data: bytes) -> bytes:
        """Write as much of *data* as the pipe accepts, and return the rest."""
        try:
            return data[os.write(self.descriptor, data) :] if data else data
        except OSError:
            # The pipe is full, or the supervisor is gone and this process will soon end too.
            return data


def encode_line(line: LogLine) -> bytes:
    """Return *line* as JSON; invalid Unicode, such as file names in another encoding, is escaped."""
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:
        fields = msgspec.structs.asdict(line)
        texts = {name: as_utf8(value) for name, value in fields.items() if isinstance(value, str)}
        return msgspec.json.encode(msgspec.structs.replace(line, **texts))


def as_utf8(text: str) -> str:
    """Return *text* with lone surrogates, which UTF-8 cannot encode, escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def install(descriptor: int, dispatcher: str, position: Callable[[], int | None]) -> PipeHandler:
    """Make all loggers of this process write to *descriptor*."""
    os.set_blocking(descriptor, False)
    handler = PipeHandler(descriptor, dispatcher, position)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    os.register_at_fork(before=lambda: merge_children(handler))
    return handler


def merge_children(handler: PipeHandler) -> None:
    """From the first fork on, route the records of forked processes through a queue into the pipe."""
    root = logging.getLogger()
    if os.getpid() != handler.process or len(root.handlers) > 1:
        return
    from multiprocessing_logging import MultiProcessingHandler

    merged = MultiProcessingHandler(f"reput-log-{handler.dispatcher}", sub_handler=handler)
    # Give it its own list: by default it shares the filters of the handler it wraps.
    merged.filters = [lambda _: os.getpid() != handler.process]
    handler.addFilter(lambda _: os.getpid() == handler.process)
    root.addHandler(merged)
