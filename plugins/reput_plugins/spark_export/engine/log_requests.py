"""Read the dispatch requests of one range of the log, in the workers of a rebuild. Dispatchers get the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reput.store.log.log_scan import ROW_DTYPE, LogScan
from reput.store.recovery.damage_list import accepted_damage, accepted_end
from reput.store.state.recorded_settings import read_delay_history
from reput_hooks import DispatchColumns
from reput_plugins.spark_export.engine.rebuild_plan import RebuildPlan

__all__ = ["read_requests"]

Array = np.ndarray[Any, Any]


def read_requests(
    plan: RebuildPlan, begin: int, until: int, *, needs_properties: bool = False
) -> Iterator[tuple[Array, DispatchColumns]]:
    """Yield (rows, columns) of the records that begin in [begin, until); skip accepted damage.

    Raises:
        DamagedStore: some bytes are not a record, and that damage was not accepted.
    """
    accepted = accepted_damage(Path(plan.store))
    # If a split lies inside accepted damage, it is at bytes that looked like a record; the range before reads past it.
    begin = accepted_end(accepted, begin) or begin
    scan = LogScan(
        Path(plan.store),
        needs_properties=needs_properties,
        delay_history=read_delay_history(Path(plan.store), plan.settings.message_delay_level),
        passed_over=accepted,
        verify=True,
    )
    try:
        at = begin
        while at < until:
            found = scan.scan(at, until)
            at = found.end
            rows = np.frombuffer(found.columns.rows, ROW_DTYPE)
            if len(rows):
                yield rows, found.columns
    finally:
        scan.close()
