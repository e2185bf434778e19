"""Stores and handlers for tests of workers."""

from __future__ import annotations

import pytest

import reput
from working import QUICK_DELAYS, as_coroutine, as_function


@pytest.fixture
def store(tmp_path):
    """A store whose dispatchers run on a thread of the test, and whose delays are as short as they can be."""
    with reput.open(
        tmp_path / "store", mode="inline", dispatchers=["consume_queue"], message_delay_level=QUICK_DELAYS
    ) as opened:
        yield opened


@pytest.fixture(params=[as_function, as_coroutine], ids=["function", "coroutine"])
def kind(request):
    """Make a handler of a function: the function itself, or a coroutine function."""
    return request.param
