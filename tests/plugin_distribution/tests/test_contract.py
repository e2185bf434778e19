"""The contract of a dispatcher, clause by clause."""

from __future__ import annotations

from reput_hooks.testing import DispatcherContract


class TestContract(DispatcherContract):
    """Order, replays, crashes, cut and trimmed logs: each clause is a test."""

    dispatcher = "topic_count"
