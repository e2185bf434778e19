"""`reput promote`: makes the copy of a master a master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from reput.cli.terminal.options import FormatOption, OutputFormat, StoreArgument, refuse_address, takes_settings
from reput.cli.terminal.output import Printer

__all__ = ["EXAMPLES", "promote"]

EXAMPLES = {"promote": "reput promote copy || echo 'this store follows no master'"}


@takes_settings
def promote(store: StoreArgument, output_format: FormatOption = OutputFormat.TEXT) -> None:
    """Make a store that follows a master a master of its own, which takes messages. Stop `reput follow` first.

    A new epoch of its history begins at its end. Stop the old master for good before: records that reach it from now on
    are in no other log. When it comes back, `reput follow` reports what it has that this store lacks.
    """
    from reput.replication.promotion import promote as make_master

    refuse_address(store)
    Printer(output_format, text_of).row(to_builtins(make_master(store)))


def text_of(row: Mapping[str, Any]) -> str:
    """Return the row as text."""
    return (
        f"promoted: epoch={row['epoch']} begins at {row['commit_log_offset']}; it followed {row['master']} from "
        f"{row['begin']} on. `reput.open` takes messages now, and as that broker `reput serve STORE "
        f"--set brokerName={row['broker_name']} --set brokerClusterName={row['cluster_name']}`"
    )
