"""watched_source: a TARGET that is watched again and again: a store, or the brokers of an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.target.remote import connected, is_address
from reput.cli.terminal.options import settings_of

if TYPE_CHECKING:
    from reput.settings import LoadedSettings
    from reput.watched.overview import WatchedSource

__all__ = ["settings_loader", "watched_source"]


@contextmanager
def watched_source(target: Path, config: Path | None, assignments: list[str] | None) -> Iterator[WatchedSource]:
    """Yield what reads *target*.

    Raises:
        NotAStore: it is a directory without a store.
    """
    from reput.watched.overview import BrokersSource, StoreSource

    if is_address(target):
        with connected(target, config, assignments) as client:
            yield BrokersSource(str(target), client)
        return
    yield StoreSource(target, settings_loader(target, config, assignments))


def settings_loader(store: Path, config: Path | None, assignments: list[str] | None) -> Callable[[], LoadedSettings]:
    """Return what loads the settings of a store, each time anew, after a first look at the store and at them.

    Raises:
        NotAStore: the directory has no store.
        ConfigError: a setting is wrong.
    """
    from reput.store.state.identity import require_store
    from reput.store.state.recorded_settings import load_store_settings

    require_store(store)
    # Once, for what it says of unused settings.
    settings_of(store, config, assignments)
    return partial(load_store_settings, store, config, assignments or ())
