"""A dispatcher's log lines in its pipe."""

from __future__ import annotations

import contextlib
import logging
import os

import pytest

from reput.process.logs.log_merger import decode_line
from reput.process.logs.log_pipe import PipeHandler


@pytest.fixture
def pipe():
    """A handler and the reading end of its pipe, both nonblocking."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    handler = PipeHandler(writer, "index", lambda: 42)
    yield handler, reader
    handler.close()
    os.close(reader)
    os.close(writer)


def emit(handler, message, *arguments, exc_info=None):
    """Log one line."""
    record = logging.LogRecord("reput.dispatcher.index", logging.WARNING, "file", 1, message, arguments, exc_info)
    handler.handle(record)


def read(reader):
    """Return the content of the pipe."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reader, 1 << 16):
            data += part
    return data


def lines(reader):
    """Return the whole lines in the pipe."""
    return read(reader).splitlines()


def test_a_line_says_who_where_and_what(pipe):
    """Process, dispatcher, commit-log offset, level, logger, message and traceback."""
    handler, reader = pipe
    try:
        raise ValueError("wrong")
    except ValueError as error:
        emit(handler, "failed at %d", 7, exc_info=(ValueError, error, error.__traceback__))
    (line,) = map(decode_line, lines(reader))
    assert (line.process, line.dispatcher, line.commit_log_offset) == (os.getpid(), "index", 42)
    assert (line.level, line.logger, line.message) == ("WARNING", "reput.dispatcher.index", "failed at 7")
    assert line.exception.endswith("ValueError: wrong")


def test_a_full_pipe_costs_lines_and_never_time(pipe):
    """The number of dropped lines comes with the next line; no line is torn."""
    handler, reader = pipe
    for _ in range(1000):
        emit(handler, "x" * 1000)
    data = read(reader)
    emit(handler, "after")
    # First comes the rest of a line that the pipe accepted partially.
    whole = [decode_line(line) for line in (data + read(reader)).splitlines()]
    assert whole[-1].message == "after"
    assert len(whole) - 1 + whole[-1].dropped == 1000
    emit(handler, "again")
    assert decode_line(lines(reader)[0]).dropped == 0


def test_a_wrong_format_string_is_the_plugins_business(pipe, monkeypatch):
    """It does not end the dispatcher."""
    handler, reader = pipe
    monkeypatch.setattr(logging, "raiseExceptions", False)
    emit(handler, "%d", "no number")
    emit(handler, "fine")
    assert [decode_line(line).message for line in lines(reader)] == ["fine"]


def test_half_a_character_ends_no_dispatcher(pipe):
    """For example in the name of a file in another encoding: it is escaped."""
    handler, reader = pipe
    emit(handler, "cannot open %s", b"caf\xe9".decode(errors="surrogateescape"))
    assert [decode_line(line).message for line in lines(reader)] == ["cannot open caf\\udce9"]
