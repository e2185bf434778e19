"""prometheus: the metrics of a store that a program has opened, for the program's own registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reput.embedded.opened_store import OpenedStore
from reput.errors import ConfigError

if TYPE_CHECKING:
    from reput.metrics.store_collector import StoreCollector

__all__ = ["prometheus", "require_prometheus_client"]


def prometheus(store: OpenedStore[Any]) -> StoreCollector:
    """Return a collector of a store's metrics: ``prometheus_client.REGISTRY.register(reput.prometheus(store))``.

    A scrape reads the store; puts do nothing for it. docs/metrics.md lists the metrics. After the store was closed,
    ``reput_store_open`` is 0 and the others are gone. A registry holds one store: the names would repeat.

    Raises:
        ConfigError: *store* is not an open store, or the extra ``metrics`` is not installed.
    """
    if not isinstance(store, OpenedStore):
        raise ConfigError(f"store is no open store: store={store!r:.100}", "Give what reput.open returns.")
    require_prometheus_client()
    from reput.metrics.store_collector import StoreCollector

    return StoreCollector(store._engine)


def require_prometheus_client() -> None:
    """Raise ConfigError unless prometheus_client is installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"metrics need a library that is not installed: error={error}", 'Install it: pip install "reput[metrics]".'
        ) from None
