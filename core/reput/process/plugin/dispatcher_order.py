"""The order of dispatchers: predecessors, which others come ``after``, first."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from reput.errors import ConfigError

__all__ = ["enabled_predecessors", "in_order", "names_readers_wait_for"]

# The views that RocketMQ's readers use: messages by queue, and by key.
READ_VIEWS = ("consume_queue", "index")


def enabled_predecessors(after: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return for each name its enabled predecessors, that is, those that are keys of *after*."""
    return {name: tuple(other for other in others if other in after) for name, others in after.items()}


def names_readers_wait_for(after: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the enabled dispatchers whose views RocketMQ's readers use, and all their predecessors."""
    predecessors = enabled_predecessors(after)
    found: set[str] = set()
    waiting = [name for name in READ_VIEWS if name in after]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += predecessors[name]
    return found


def in_order(after: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names sorted so that each follows all its predecessors.

    Raises:
        ConfigError: the order has a cycle.
    """
    try:
        return list(TopologicalSorter(enabled_predecessors(after)).static_order())
    except CycleError as error:
        raise ConfigError(f"the order of dispatchers has a cycle: {' after '.join(error.args[1])}") from None
