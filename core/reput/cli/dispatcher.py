"""`reput dispatcher`: the process group of a store that a program has open, through its control socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from reput.cli.options import FormatOption, OutputFormat, StoreArgument
from reput.cli.output import print_table, write_line
from reput.errors import StoreError
from reput.process.messages import Verb

__all__ = ["register"]

LIST_EXAMPLE = "reput dispatcher list --help"
VERBS: dict[Verb, str] = {
    "pause": "Have a dispatcher flush and stop, until it is resumed.",
    "resume": "Start a dispatcher that was paused, or failed for good.",
    "restart": "Have a dispatcher flush, stop, and start again.",
    "attach": "Start an installed dispatcher beside those that run.",
    "detach": "Have a dispatcher flush, stop, and leave the group.",
}
COLUMNS = ("name", "distribution", "version", "pid", "state", "lag_bytes", "restart_count", "error")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a dispatcher.", show_default=False)]


def list_dispatchers(store: StoreArgument, output_format: FormatOption = OutputFormat.TEXT) -> None:
    """Show the dispatchers of a store that a program has open."""
    from reput.process.control_socket import group_status
    from reput.store.identity import require_store

    require_store(store)
    status = group_status(store)
    if status is None:
        raise StoreError(f"nobody has this store open: store={store}", "Open it, or see `reput status`.")
    print_table(msgspec.to_builtins(status.dispatchers), COLUMNS, output_format)


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*, all alike."""
    application.command("list", epilog=f"\b\nExample:\n  {LIST_EXAMPLE}")(list_dispatchers)
    for verb, what in VERBS.items():
        example = f"reput dispatcher {verb} --help"
        application.command(verb, help=what, epilog=f"\b\nExample:\n  {example}")(command(verb))


def command(verb: Verb) -> Callable[[Path, str], None]:
    """Return the command for one verb."""

    def run(store: StoreArgument, name: NameArgument) -> None:
        from reput.process.control_socket import request
        from reput.store.identity import require_store

        require_store(store)
        request(store, verb, name)
        write_line(f"{verb}: {name}")

    return run
