"""LogMerger: merges the log lines of all processes of the group into one stream, in the supervisor.

All lines go to ``reput/log/group.log``, which is rotated when it is large. Warnings and errors also go to the
supervisor's stderr, which is the owner's. Nothing here blocks: if stderr accepts no data, lines are dropped and
counted. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from reput.process.logs.exception_text import exception_line
from reput.process.logs.log_pipe import LogLine

__all__ = ["LinePipe", "LogMerger", "RubbishPipe"]

FILE_SIZE_MAX = 8 << 20
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
STDERR_LEVEL = 30
READ_SIZE = 1 << 16
READS_AT_CLOSE = 4
LINE_SIZE_MAX = 256 << 10
# Lines of a plugin's printed output that are kept per second and dispatcher.
RUBBISH_LINES_MAX = 100
RUBBISH_LINE_SIZE_MAX = 1000

decode_line = msgspec.json.Decoder(LogLine).decode


class LogMerger:
    """Writes lines in the format *form* to *directory* and to the descriptor *stderr*; None: to *directory* only."""

    def __init__(self, directory: Path, form: Literal["text", "json"], stderr: int | None = 2) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "group.log"
        self.form = form
        self.stderr = stderr
        self.poll = select.poll()
        if stderr is not None:
            self.poll.register(stderr, select.POLLOUT)
        self.lost_on_stderr = 0
        self.open()

    def open(self) -> None:
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self.descriptor).st_size

    def say(self, level: str, message: str, *, dispatcher: str = "", process: int | None = None) -> None:
        """Add a line from the supervisor itself."""
        now = time.time_ns() // 1_000_000
        self.write(LogLine(now, level, process or os.getpid(), dispatcher, message, logger="reput.process"))

    def write(self, line: LogLine) -> None:
        """Add *line*."""
        if line.dropped:
            lost = f"lines were lost before this one: count={line.dropped}"
            self.put(msgspec.structs.replace(line, level="WARNING", message=lost, exception=None, dropped=0))
            line = msgspec.structs.replace(line, dropped=0)
        self.put(line)

    def put(self, line: LogLine) -> None:
        data = msgspec.json.encode(line) + b"\n" if self.form == "json" else as_text(line)
        with contextlib.suppress(OSError):
            # A full disk loses log lines; other users of the disk report it more loudly.
            self.size += os.write(self.descriptor, data)
            if self.size >= FILE_SIZE_MAX:
                self.turn_over()
        if LEVELS.get(line.level, STDERR_LEVEL) >= STDERR_LEVEL:
            self.show(data if self.form == "json" else as_text(in_short(line)))

    def turn_over(self) -> None:
        """Rotate the log; if no new file can be created, the old one stays in use under its new name."""
        former = self.descriptor
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, self.path.with_suffix(".log.1"))
        self.open()
        os.close(former)

    def show(self, data: bytes) -> None:
        """Write as much to stderr as it accepts without blocking."""
        if self.stderr is None:
            return
        if self.lost_on_stderr:
            data = f"(lines lost here: {self.lost_on_stderr})\n".encode() + data
        view = memoryview(data)
        while view:
            # A writable pipe accepts PIPE_BUF bytes without blocking.
            events = self.poll.poll(0)
            if not events or not events[0][1] & select.POLLOUT:
                self.lost_on_stderr += 1
                return
            try:
                view = view[os.write(self.stderr, view[: select.PIPE_BUF]) :]
            except OSError:
                self.lost_on_stderr += 1
                return
        self.lost_on_stderr = 0


def in_short(line: LogLine) -> LogLine:
    """Return *line* with its traceback cut to the exception itself; the file has all of it."""
    if not line.exception:
        return line
    return msgspec.structs.replace(line, message=f"{line.message}: {exception_line(line.exception)}", exception=None)


def as_text(line: LogLine) -> bytes:
    """Return *line* for people: time, level, dispatcher, process, commit-log offset, message.

    Further lines of a message are indented like those of a traceback, so that a plugin's text cannot pass for another
    log line. Control characters are escaped.
    """
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(line.time / 1000))
    who = line.dispatcher or "supervisor"
    where = "" if line.commit_log_offset is None else f" @{line.commit_log_offset}"
    text = f"{clock}.{line.time % 1000:03d} {line.level} {who}[{line.process}]{where} "
    said = [*(line.message.splitlines() or [""]), *(line.exception or "").splitlines()]
    text += "    ".join(f"{printable(part)}\n" for part in said)
    return text.encode("utf-8", "replace")


def printable(text: str) -> str:
    """Return *text* with its control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text)


class LinePipe:
    """The reading end of one dispatcher's log pipe."""

    def __init__(self, descriptor: int, merger: LogMerger, dispatcher: str, on_event: Callable[[str], None]) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.merger = merger
        self.dispatcher = dispatcher
        self.on_event = on_event
        self.received = b""

    def read(self) -> int | None:
        """Take up what has come, a bounded part of it; return the bytes, None at the end of the pipe."""
        try:
            data = os.read(self.descriptor, READ_SIZE)
        except BlockingIOError:
            return 0
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self.take(line)
        if len(self.received) > LINE_SIZE_MAX:
            self.received = b""
        return len(data) or None

    def take(self, line: bytes) -> None:
        """Add one line. An invalid line was written into the dispatcher's descriptor by other code."""
        try:
            decoded = decode_line(line)
        except msgspec.MsgspecError:
            self.merger.say("WARNING", f"no log line: {line[:200]!r}", dispatcher=self.dispatcher)
            return
        if decoded.event:
            self.on_event(decoded.event)
        else:
            self.merger.write(decoded)

    def close(self) -> None:
        """Read what is left and close."""
        # A pipe holds 64 KiB. Processes that the plugin forked may still write; they must not hold up the supervisor.
        for _ in range(READS_AT_CLOSE):
            if not self.read():
                break
        os.close(self.descriptor)


class RubbishPipe:
    """The reading end of one dispatcher's stdout and stderr."""

    def __init__(self, descriptor: int, merger: LogMerger, dispatcher: str, process: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.merger = merger
        self.dispatcher = dispatcher
        self.process = process
        self.received = b""
        self.second = 0
        self.count = 0
        self.lost = 0

    def read(self) -> int | None:
        """Take up what has come, a bounded part of it; return the bytes, None at the end of the pipe."""
        try:
            data = os.read(self.descriptor, READ_SIZE)
        except BlockingIOError:
            return 0
        *lines, self.received = (self.received + data).split(b"\n")
        for number, line in enumerate(lines, 1):
            if not self.take(line):
                # Over the limit the supervisor only counts lines.
                self.lost += len(lines) - number
                break
        if len(self.received) > RUBBISH_LINE_SIZE_MAX or (not data and self.received):
            self.take(self.received)
            self.received = b""
        return len(data) or None

    def take(self, line: bytes) -> bool:
        """Add one line; return False if there is no room for it in this second."""
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.count = second, 0
            if self.lost:
                lost, self.lost = self.lost, 0
                self.say(f"printed more than is kept: lines_lost={lost}", "WARNING")
        self.count += 1
        if self.count > RUBBISH_LINES_MAX:
            self.lost += 1
            return False
        if line:
            self.say(f"printed: {line[:RUBBISH_LINE_SIZE_MAX].decode('utf-8', 'replace')}", "INFO")
        return True

    def say(self, message: str, level: str) -> None:
        self.merger.say(level, message, dispatcher=self.dispatcher, process=self.process)

    def close(self) -> None:
        """Read what is left and close."""
        for _ in range(READS_AT_CLOSE):
            if not self.read():
                break
        if self.received:
            self.take(self.received)
        if self.lost:
            self.say(f"printed more than is kept: lines_lost={self.lost}", "WARNING")
        os.close(self.descriptor)
