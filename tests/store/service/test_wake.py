"""The flag that wakes a service thread."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from reput.store.service.wake import Wake


def test_it_is_set_until_it_is_cleared():
    """A wait ends at once while it is set, and does not clear it."""
    wake = Wake()
    assert not wake.wait(0.0)
    wake.set()
    wake.set()
    assert wake.is_set()
    assert wake.wait()
    assert wake.wait(-1.0)
    wake.clear()
    wake.clear()
    assert not wake.is_set()
    assert not wake.wait(0.001)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ctrl_c_while_it_is_set_leaves_it_usable(number):
    """Wherever a call returns, an interrupt leaves nothing locked: the next put can wake the service."""
    wake = Wake()
    left = number

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        del frame, argument
        left -= event in ("return", "c_return")
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        wake.set()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    wake.set()
    assert wake.wait(0.0)
