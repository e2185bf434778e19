"""The order of dispatchers."""

from __future__ import annotations

import pytest

from reput.errors import ConfigError
from reput.process.plugin.dispatcher_order import enabled_predecessors, in_order, names_readers_wait_for


def test_predecessors_come_first_and_absent_ones_do_not_count():
    """`after` may name dispatchers that are not enabled."""
    after = {"lake": ("queue",), "queue": ("ext", "index"), "index": ()}
    assert enabled_predecessors(after) == {"lake": ("queue",), "queue": ("index",), "index": ()}
    assert in_order(after) == ["index", "queue", "lake"]


def test_readers_wait_for_what_their_views_come_after():
    """All enabled predecessors; no successors."""
    after = {"consume_queue": ("ext", "absent"), "ext": ("filters",), "filters": (), "lake": ("consume_queue",)}
    assert names_readers_wait_for(after) == {"consume_queue", "ext", "filters"}
    assert names_readers_wait_for({"index": (), "lake": ()}) == {"index"}


def test_a_circle_is_named():
    """None of them would ever begin."""
    with pytest.raises(ConfigError, match=r"(a after b|b after a)"):
        in_order({"a": ("b",), "b": ("a",)})
