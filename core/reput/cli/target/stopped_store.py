"""Topics and groups for verbs: of a store's files, which no other program may have open for changes, or of brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from reput.cli.target.remote import connected, is_address
from reput.cli.terminal.options import settings_of

if TYPE_CHECKING:
    from reput.client.administration import ClusterAdministration
    from reput.consume.administration.administration import Administration

    AnyAdministration: TypeAlias = Administration | ClusterAdministration

__all__ = ["administrate", "look"]


@contextmanager
def look(store: Path, config: Path | None, assignments: list[str] | None) -> Iterator[AnyAdministration]:
    """Yield the configuration of a store for reading, whether open or not; no byte changes. Or that of brokers."""
    from reput.embedded.read_administration import ReadAdministration
    from reput.embedded.read_only_engine import ReadOnlyEngine

    if is_address(store):
        with connected(store, config, assignments) as client:
            yield client.administration
        return
    settings = settings_of(store, config, assignments).settings
    with ReadOnlyEngine(store, settings) as opened:
        yield ReadAdministration(opened).administration


@contextmanager
def administrate(store: Path, config: Path | None, assignments: list[str] | None) -> Iterator[AnyAdministration]:
    """Yield the configuration of a store that no program has open, for changes. Or that of brokers."""
    from reput.consume.administration.stopped_store import StoppedStore
    from reput.embedded.read_only_engine import ReadOnlyEngine

    if is_address(store):
        with connected(store, config, assignments) as client:
            yield client.administration
        return
    settings = settings_of(store, config, assignments).settings
    with ReadOnlyEngine(store, settings) as opened, StoppedStore(store, opened) as stopped:
        yield stopped.administration
