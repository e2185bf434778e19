"""watched_source: a TARGET that is watched again and again: a store, or the brokers of an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.target.remote import connected, is_address
from reput.cli.terminal.options import settings_of

if TYPE_CHECKING:
    from reput.watched.overview import WatchedSource

__all__ = ["watched_source"]


@contextmanager
def watched_source(target: Path, config: Path | None, assignments: list[str] | None) -> Iterator[WatchedSource]:
    """Yield what reads *target*.

    Raises:
        NotAStore: it is a directory without a store.
    """
    from reput.store.state.identity import require_store
    from reput.store.state.recorded_settings import load_store_settings
    from reput.watched.overview import BrokersSource, StoreSource

    if is_address(target):
        with connected(target, config, assignments) as client:
            yield BrokersSource(str(target), client)
        return
    require_store(target)
    # Once, for what it says of unused settings; each reading loads them again.
    settings_of(target, config, assignments)
    yield StoreSource(target, partial(load_store_settings, target, config, assignments or ()))
