"""The ring of an inline group, whose writer is the program itself."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from reput.process.owner.inline_ring import InlineRing


def test_ctrl_c_in_a_put_never_leaves_the_ring_locked():
    """Wherever a call returns while a frame is published, an interrupt there gives the lock back: close cannot hang."""
    ring = InlineRing(capacity=1000, appended=0, durable=0, commit_log_offset_min=0, epoch=1, ordinal=0)
    left = 0

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        del frame, argument
        if event in ("return", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as executor:
        for number in range(1, 100):
            left = number
            sys.setprofile(interrupt)
            try:
                ring.publish(b"frame", number, number)
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.setprofile(None)
            assert executor.submit(lambda: ring.lock.acquire(timeout=1) and not ring.lock.release()).result(), number
        else:
            pytest.fail("a publication makes a hundred calls")
    assert left > 0
    assert number > 3
