"""shown_target: a TARGET that a console shows: a store, or the brokers of an address."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.target.remote import connected, is_address
from reput.cli.target.watched_target import settings_loader
from reput.errors import ConfigError

if TYPE_CHECKING:
    from reput.console.console_target import ConsoleTarget

__all__ = ["require_console", "shown_target"]

MODULES = ("starlette", "uvicorn", "jinja2", "prometheus_client")


def require_console() -> None:
    """Raise ConfigError unless the libraries of the console are installed."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the console needs libraries that are not installed: missing={','.join(missing)}",
            'Install them: pip install "reput[console]".',
        )


@contextmanager
def shown_target(target: Path, config: Path | None, assignments: list[str] | None) -> Iterator[ConsoleTarget]:
    """Yield what a console asks about *target*.

    Raises:
        NotAStore: it is a directory without a store.
    """
    from reput.console.console_target import ConsoleBrokers, ConsoleStore

    if is_address(target):
        with connected(target, config, assignments) as client:
            yield ConsoleBrokers(str(target), client)
        return
    with closing(ConsoleStore(target, settings_loader(target, config, assignments))) as store:
        yield store
