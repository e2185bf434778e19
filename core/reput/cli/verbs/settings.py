"""`reput settings`: shows and changes the recorded settings that a store's bytes depend on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    refuse_address,
    settings_of,
)
from reput.cli.terminal.output import print_table

if TYPE_CHECKING:
    from reput.store.state.identity import StoreIdentity

__all__ = ["EXAMPLE", "settings"]

EXAMPLE = 'reput send store orders --count 3 && reput settings store --change message_delay_level="1s 1m 1h"'
COLUMNS = ("name", "value", "from")

ChangeOption = Annotated[
    list[str] | None,
    typer.Option("--change", metavar="NAME=VALUE", help="Record another value for later messages; may be repeated."),
]


def settings(
    store: StoreArgument,
    changes: ChangeOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Show or change the recorded settings that determine the meaning of a store's bytes.

    Every verb uses these settings and refuses different values. A changed value applies to later messages, from a
    commit-log offset on. Close the store before you change one. Exit code 1: nothing is recorded.
    """
    from reput.store.state.identity import read_identity, require_store

    refuse_address(store)
    require_store(store)
    if changes:
        change(store, config, [*(assignments or ()), *changes], changes)
    else:
        settings_of(store, config, assignments)
    rows = recorded_rows(read_identity(store))
    print_table(rows, COLUMNS, output_format)
    return 0 if rows else ANSWER_IS_NO


def change(store: Path, config: Path | None, assignments: list[str], changes: list[str]) -> None:
    """Record the values of *changes* with a store.

    Raises:
        ConfigError: a setting is not one that is recorded, or contradicts the store's files.
        StoreLocked: another process writes the store.
    """
    from reput.store.message_store import MessageStore
    from reput.store.state.recorded_settings import changed_settings

    fields = changed_settings(text.partition("=")[0].strip() for text in changes)
    loaded = settings_of(store, config, assignments, fields)
    MessageStore(store, loaded.settings, change_settings=fields).give_back()


def recorded_rows(identity: StoreIdentity | None) -> list[dict[str, Any]]:
    """Return a row for each current or former value; *from* is a commit-log offset."""
    if identity is None:
        return []
    sizes = [{"name": name, "value": value, "from": 0} for name, value in identity.file_sizes.items()]
    return sizes + [
        {"name": name, "value": part.value, "from": part.begin}
        for name, parts in identity.settings.items()
        for part in parts
    ]
