"""`reput dispatcher`: controls the process group of an open store, through its control socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reput.cli.terminal.failure import ANSWER_IS_NO
from reput.cli.terminal.options import (
    BodyOption,
    ConfigOption,
    FormatOption,
    OutputFormat,
    SetOption,
    StoreArgument,
    epilog,
    settings_of,
    takes_settings,
)
from reput.cli.terminal.output import BODY_PREVIEW_SIZE, Printer, print_table, write_line
from reput.cli.terminal.rows import Body, record_row, record_text, time_text
from reput.errors import ReputError, StoreError
from reput.process.control.control_messages import Verb

if TYPE_CHECKING:
    from reput.settings import Settings

__all__ = ["register"]

LIST_EXAMPLE = "reput dispatcher list --help"
DEAD_LETTERS_EXAMPLE = "reput send store orders --count 3 && reput dispatcher dead-letters store index"
DEBUG_EXAMPLE = "reput send store orders --count 3 && reput dispatcher debug store index"
VERBS: dict[Verb, str] = {
    "pause": "Flush and stop a dispatcher until it is resumed.",
    "resume": "Start a paused dispatcher, or one in the state FATAL or BROKEN.",
    "restart": "Flush, stop and start a dispatcher.",
    "attach": "Add an installed dispatcher to the running ones.",
    "detach": "Flush and stop a dispatcher, and remove it from the group.",
}
COLUMNS = ("name", "distribution", "version", "pid", "state", "lag_bytes", "restart_count", "error")
REPLAY_COLUMNS = ("commit_log_offset", "topic", "queue_id", "queue_offset", "outcome", "reason")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a dispatcher.", show_default=False)]


def list_dispatchers(store: StoreArgument, output_format: FormatOption = OutputFormat.TEXT) -> None:
    """Show the dispatchers of an open store."""
    from reput.process.control.control_socket import group_status
    from reput.store.state.identity import require_store

    require_store(store)
    status = group_status(store)
    if status is None:
        raise StoreError(f"no program has this store open: store={store}", "Open it, or see `reput status`.")
    print_table(msgspec.to_builtins(status.dispatchers), COLUMNS, output_format)


def dead_letters(
    store: StoreArgument,
    name: NameArgument,
    replay: Annotated[
        bool, typer.Option("--replay", help="Send the records to the dispatcher again, and show each outcome.")
    ] = False,
    body: BodyOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show the records that a dispatcher rejected, with its reasons, or replay them.

    The store may be open or closed. --replay restarts a running dispatcher, which then takes the records again;
    otherwise it takes them at its next start. An unreadable line is reported, and the other records are shown.
    """
    from reput.process.owner.dead_letter_replay import replay_dead_letters
    from reput.process.views.dead_letters import DeadLetters
    from reput.store.record.record import decode_record
    from reput.store.state.identity import require_store

    require_store(store)
    require_dispatcher(store, name, settings_of(store, config, assignments).settings)
    letters = DeadLetters(store, name)
    if replay:
        print_table(msgspec.to_builtins(replay_dead_letters(store, name)), REPLAY_COLUMNS, output_format)
        letters.require_whole()
        return
    printer = Printer(output_format, lambda row: dead_letter_text(row, None if body else BODY_PREVIEW_SIZE))
    for letter in letters.read():
        kind = (body or Body.BASE64) if printer.is_json else Body.TEXT if body is None else body
        rejected = {"reason": letter.reason, "rejected_timestamp": letter.timestamp, "epoch": letter.epoch}
        printer.row(rejected | record_row(decode_record(letter.record), kind))
    letters.require_whole()


def require_dispatcher(store: Path, name: str, settings: Settings) -> None:
    """Refuse the name of an unknown dispatcher: an empty list would look as if it had rejected nothing.

    Raises:
        ConfigError: it is not installed, and the store has no data of it.
    """
    from reput.process.plugin.catalogue import select_dispatchers
    from reput.process.views.dead_letters import DeadLetters
    from reput.store.state.dispatcher_cursors import read_dispatcher_cursors

    if name not in read_dispatcher_cursors(store) and not DeadLetters(store, name).lines.path.exists():
        select_dispatchers([name], settings.dispatcher_plugins)


def dead_letter_text(row: Mapping[str, Any], body_size_max: int | None) -> str:
    """Return one dead letter as text: time and reason, and below them the record."""
    return f"{time_text(row['rejected_timestamp'])}  {row['reason']}\n{record_text(row, body_size_max)}"


def debug_dispatcher(
    store: StoreArgument,
    name: NameArgument,
    empty: Annotated[
        bool, typer.Option("--empty", help="Begin with an empty view at the log's beginning, instead of a copy.")
    ] = False,
    target: Annotated[
        Path | None, typer.Option("--target", metavar="DIR", help="Build the view in this directory, and keep it.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new records, until Ctrl-C.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run a dispatcher whose view lies outside the store, although it may send records again."
        ),
    ] = False,
    pdb: Annotated[bool, typer.Option("--pdb", help="Start pdb where the plugin raised an exception.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    output_format: FormatOption = OutputFormat.TEXT,
) -> int:
    """Run one dispatcher in this process, on a copy of its view, for a debugger; the store is only read.

    A breakpoint() in the plugin opens on this terminal. Exit code 1: the plugin raised an exception, which is shown.
    """
    import traceback

    from reput.process.owner.debugging import DebuggedDispatcher
    from reput.store.state.identity import require_store

    require_store(store)
    settings = settings_of(store, config, assignments).settings
    debugged = DebuggedDispatcher(store, name, settings, target, empty, force=force)
    try:
        debugged.run(follow=follow)
        debugged.flush()
    except ReputError:
        raise
    except Exception as error:
        traceback.print_exception(error)
        if pdb:
            import pdb as debugger

            debugger.post_mortem(error.__traceback__)
        return ANSWER_IS_NO
    finally:
        row = {
            "name": name,
            "progress": debugged.cursor.commit_log_offset,
            "batches": debugged.batch_count,
            "rejected": debugged.rejected_count,
            "target": None if target is None else str(target),
        }
        print_table([row], tuple(row), output_format)
        debugged.release()
    return 0


def register(application: typer.Typer) -> None:
    """Add the control verbs to *application*."""
    application.command("list", epilog=epilog(LIST_EXAMPLE))(takes_settings(list_dispatchers))
    application.command("debug", epilog=epilog(DEBUG_EXAMPLE))(debug_dispatcher)
    application.command("dead-letters", epilog=epilog(DEAD_LETTERS_EXAMPLE))(dead_letters)
    for verb, what in VERBS.items():
        example = f"reput dispatcher {verb} --help"
        application.command(verb, help=what, epilog=epilog(example))(takes_settings(command(verb)))


def command(verb: Verb) -> Callable[[Path, str], None]:
    """Return the command function of one verb."""

    def run(store: StoreArgument, name: NameArgument) -> None:
        from reput.process.control.control_socket import request
        from reput.store.state.identity import require_store

        require_store(store)
        request(store, verb, name)
        write_line(f"{verb}: {name}")

    return run
