"""Statistics of the process that has a store open, and their place in a status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput.process.control.group_status import GroupStatus

if TYPE_CHECKING:
    from reput.consume.registry.statistics import StoreStatistics

__all__ = ["owners_statistics", "with_statistics"]


def owners_statistics(directory: Path) -> StoreStatistics | None:
    """Return the statistics of the program that has the store open; None if no such program can be asked."""
    from reput.process.control.control_socket import owner_statistics

    answer = owner_statistics(directory)
    if answer is None:
        return None
    from reput.consume.registry.statistics import StoreStatistics

    return msgspec.json.decode(answer, type=StoreStatistics)


def with_statistics(status: GroupStatus, statistics: StoreStatistics) -> GroupStatus:
    """Return *status* with the statistics of the store's owner."""
    counts = msgspec.to_builtins(statistics)
    del counts["lease"]
    return msgspec.structs.replace(
        status,
        waiting_delays=counts.pop("waiting_delays"),
        half_messages=counts.pop("half_messages"),
        statistics=counts,
        lease=statistics.lease,
    )
