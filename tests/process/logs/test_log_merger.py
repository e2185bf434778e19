"""The log lines of all processes as one stream."""

from __future__ import annotations

import errno
import json
import os

import msgspec
import pytest

from reput.process.logs.log_merger import FILE_SIZE_MAX, LinePipe, LogMerger, RubbishPipe, as_text
from reput.process.logs.log_pipe import LogLine

LINE = LogLine(1_700_000_000_123, "WARNING", 77, "index", "something", commit_log_offset=42, exception="Trace\n  wrong")


@pytest.fixture
def stderr():
    """A pipe that replaces the owner's stderr: its writing end, and a function that reads it."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(writer, True)

    def read():
        try:
            return os.read(reader, 1 << 20).decode()
        except BlockingIOError:
            return ""

    yield writer, read
    os.close(reader)
    os.close(writer)


def merger_of(tmp_path, stderr, form="text"):
    """Return a merger and a function that reads its file."""
    merger = LogMerger(tmp_path, form, stderr[0])
    return merger, lambda: (tmp_path / "group.log").read_text()


def test_a_line_is_plain_for_people(tmp_path, stderr):
    """Time, level, dispatcher, process, offset, message; warnings also go to stderr."""
    merger, file = merger_of(tmp_path, stderr)
    merger.write(LINE)
    merger.write(msgspec.structs.replace(LINE, level="INFO", message="quiet"))
    assert "WARNING index[77] @42 something\n    Trace\n      wrong\n" in file()
    assert "INFO index[77] @42 quiet" in file()
    shown = stderr[1]()
    assert "something" in shown
    assert "quiet" not in shown


def test_a_message_of_several_lines_passes_for_no_other():
    """Further lines are indented, and control characters are escaped."""
    forged = "2026-01-01T00:00:00.000 INFO supervisor[1] all is well"
    line = LogLine(0, "WARNING", 42, "index", f"first\n{forged}\x1b[2J\x00\tü", exception="Traceback\nE: \x9b")
    first, *others = as_text(line).decode().splitlines()
    assert first.endswith(" WARNING index[42] first")
    assert others == [f"    {forged}\\x1b[2J\\x00\tü", "    Traceback", "    E: \\x9b"]
    assert as_text(LogLine(0, "INFO", 42, "index", "")).endswith(b" INFO index[42] \n")


def test_a_line_is_json_by_option(tmp_path, stderr):
    """One object per line."""
    merger, file = merger_of(tmp_path, stderr, "json")
    merger.write(LINE)
    row = json.loads(file())
    assert (row["time"], row["dispatcher"], row["commit_log_offset"]) == (1_700_000_000_123, "index", 42)


def test_lost_lines_are_counted(tmp_path, stderr):
    """The stream shows that lines are missing."""
    merger, file = merger_of(tmp_path, stderr)
    merger.write(msgspec.structs.replace(LINE, dropped=9))
    assert "count=9" in file()


def test_a_stderr_that_nobody_reads_holds_nobody_up(tmp_path, stderr):
    """Lines are dropped there and counted; the file has all of them."""
    merger, file = merger_of(tmp_path, stderr)
    for _ in range(2000):
        merger.say("ERROR", "x" * 100)
    assert merger.lost_on_stderr > 0
    assert file().count("x" * 100) == 2000
    while stderr[1]():
        pass
    merger.say("ERROR", "last")
    assert "lines lost here" in stderr[1]()


def test_the_file_is_turned_over(tmp_path, stderr):
    """Its size stays below twice its bound."""
    merger, file = merger_of(tmp_path, stderr)
    for _ in range(FILE_SIZE_MAX // (60 << 10) + 2):
        merger.say("INFO", "x" * (60 << 10))
    assert len(file()) < FILE_SIZE_MAX
    assert (tmp_path / "group.log.1").stat().st_size >= FILE_SIZE_MAX


def test_a_file_that_cannot_be_turned_over_goes_on(tmp_path, stderr, monkeypatch):
    """Without a free descriptor, lines still go to the old file, and to no other file."""
    merger, file = merger_of(tmp_path, stderr)
    real_open = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith("group.log"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(path, *arguments, **options)

    merger.size = FILE_SIZE_MAX
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        merger.say("INFO", "no room")
        # The next opened file gets the lowest free number.
        others = os.pipe2(os.O_NONBLOCK)
        merger.say("INFO", "still no room")
    with pytest.raises(BlockingIOError):
        os.read(others[0], 1)
    merger.say("INFO", "room again")
    merger.say("INFO", "in another file")
    assert "still no room" in (tmp_path / "group.log.1").read_text()
    assert "in another file" in file()
    for descriptor in others:
        os.close(descriptor)


def test_lines_and_events_are_told_apart(tmp_path, stderr):
    """Any other data is shown as text, never unpickled."""
    merger, file = merger_of(tmp_path, stderr)
    reader, writer = os.pipe()
    events = []
    pipe = LinePipe(reader, merger, "index", events.append)
    event = msgspec.structs.replace(LINE, event="running")
    os.write(writer, msgspec.json.encode(LINE) + b"\n" + msgspec.json.encode(event) + b"\n\x80\x04pickle\n")
    assert pipe.read()
    assert pipe.read() == 0
    assert events == ["running"]
    assert file().count("something") == 1
    assert "no log line" in file()
    os.close(writer)
    assert pipe.read() is None
    pipe.close()


def test_what_is_printed_is_bounded_per_second(tmp_path, stderr):
    """The rest is counted."""
    merger, file = merger_of(tmp_path, stderr)
    reader, writer = os.pipe()
    pipe = RubbishPipe(reader, merger, "index", 77)
    os.write(writer, b"word\n" * 10_000)
    while pipe.read():
        pass
    os.write(writer, b"without an end")
    os.close(writer)
    pipe.close()
    printed = file().count("printed: ")
    assert 100 <= printed <= 300
    assert "lines_lost=" in file()
