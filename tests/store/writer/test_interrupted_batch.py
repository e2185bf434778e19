"""Ctrl-C in a batch of several queues: each queue's offsets stay without a hole and without a double."""

from __future__ import annotations

import dis
import inspect
import sys
from collections import defaultdict
from types import FrameType
from typing import Any

import pytest

from reput.store.record.message import Message
from reput.store.writer.appender import Appender
from small_store import drop, open_store, records

QUEUES = 3
# Between these a loop looks for signals.
LOOPS_BACK = {dis.opmap[name] for name in dis.opmap if name.startswith("JUMP_BACKWARD")}


def test_ctrl_c_behind_the_bytes_of_a_batch_repeats_no_queue_offset(tmp_path, monkeypatch):
    """It comes at the first place behind the copy into the log where Python looks for signals in a loop."""
    monkeypatch.setenv("REPUT_KERNEL", "off")
    opened = open_store(tmp_path / "store")
    batch = [Message("orders", b"x", queue_id=queue_id) for queue_id in range(QUEUES)]

    def interrupt(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not Appender.append_run.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and opened.commit_log.appended and frame.f_code.co_code[frame.f_lasti] in LOOPS_BACK:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    # Python 3.12 tells a frame's operations only if one frame had asked for them before tracing began.
    inspect.currentframe().f_trace_opcodes = True
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            opened.appender.append_batch(batch)
    finally:
        sys.settrace(before)
    opened.appender.append_batch(batch)
    drop(opened)
    following: dict[int, int] = defaultdict(int)
    for record in records(tmp_path / "store"):
        assert record.queue_offset == following[record.queue_id]
        following[record.queue_id] += 1
    assert following == dict.fromkeys(range(QUEUES), 2)
