"""`reput bench`: reput's own measurements, with what is to be known of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli.options import FormatOption, OutputFormat, whole_number
from reput.cli.output import Printer, table_text

__all__ = ["EXAMPLES", "append", "consume", "dispatch", "export", "open_store", "read", "rebuild", "ring"]

EXAMPLES = {
    "append": "reput bench append --count 50000",
    "consume": "reput bench consume --count 50000 --wake-ups 500",
    "dispatch": "reput bench dispatch --count 2000 --restarts 3",
    "export": "reput bench export --bytes 16777216 --no-spark",
    "open": "reput bench open --bytes 16777216 --rounds 2",
    "read": "reput bench read --count 50000",
    "rebuild": "reput bench rebuild --count 50000",
    "ring": "reput bench ring --requests 200000 --rounds 4 --wake-ups 200",
}
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="D", help="Where a scratch store is made and removed again; by default in /tmp."
    ),
]
SizeOption = Annotated[
    int, typer.Option("--size", metavar="B", parser=whole_number(), help="Bytes of the body of a message.")
]
KeysOption = Annotated[int, typer.Option("--keys", metavar="K", parser=whole_number(), help="Keys of a message.")]


def append(
    directory: DirectoryOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages a run.")
    ] = 1_000_000,
    size: SizeOption = 1024,
    batch: Annotated[int, typer.Option("--batch", metavar="N", parser=whole_number(1), help="Messages a batch.")] = 64,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure puts while their views keep up: one by one, in batches, and from put to readable."""
    from reput.bench.append import measure_append

    print_report(measure_append(directory, count=count, body_size=size, batch=batch), output_format)


def consume(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 300_000,
    size: SizeOption = 1024,
    wake_ups: Annotated[
        int, typer.Option("--wake-ups", metavar="N", parser=whole_number(1), help="Messages to whoever waits.")
    ] = 3_000,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure a consumer in the program: all messages, one tag of a hundred, from put to received, and who waits."""
    from reput.bench.consume import measure_consume

    print_report(measure_consume(directory, count=count, body_size=size, wake_ups=wake_ups), output_format)


def export(
    directory: DirectoryOption = None,
    size: Annotated[int, typer.Option("--bytes", metavar="B", parser=whole_number(1), help="Bytes of the log.")] = 1
    << 30,
    body: SizeOption = 1024,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Measure the decoding alone.")] = False,
    trickle: Annotated[
        int, typer.Option("--trickle", metavar="S", parser=whole_number(1), help="Seconds of 100 messages a second.")
    ] = 30,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure the way into a lake: decode, export, a backlog, single messages, Spark's start and memory."""
    from reput.bench.export import measure_export

    report = measure_export(directory, size=size, body_size=body, with_spark=not no_spark, trickle_seconds=trickle)
    print_report(report, output_format)


def dispatch(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Puts a round.")] = 20_000,
    size: SizeOption = 1024,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", parser=whole_number(1), help="Kills of the consume queue.")
    ] = 20,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure what dispatchers cost a put, how soon they see it, and how soon they are back after a kill."""
    from reput.bench.dispatch import measure_dispatch

    print_report(measure_dispatch(directory, count=count, body_size=size, restarts=restarts), output_format)


def open_store(
    directory: DirectoryOption = None,
    log_bytes: Annotated[
        int, typer.Option("--bytes", metavar="B", parser=whole_number(1 << 20), help="Bytes of the log.")
    ] = 1 << 30,
    size: SizeOption = 1024,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", parser=whole_number(1), help="Openings of each kind, and checks.")
    ] = 3,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure from the command to a usable store, after a close and after a kill, and how fast a log is checked."""
    from reput.bench.open import measure_open

    print_report(measure_open(directory, size=log_bytes, body_size=size, rounds=rounds), output_format)


def read(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 600_000,
    size: SizeOption = 1024,
    keys: KeysOption = 2,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure reads: 32 at a time in order, one at random, by key."""
    from reput.bench.read import measure_read

    print_report(measure_read(directory, count=count, keys=keys, body_size=size), output_format)


def rebuild(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 1_000_000,
    queues: Annotated[int, typer.Option("--queues", metavar="Q", parser=whole_number(1), help="Queues.")] = 4,
    size: SizeOption = 1024,
    keys: KeysOption = 2,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure how fast consume queue and index are built from a log again, side by side."""
    from reput.bench.rebuild import measure_rebuild

    print_report(measure_rebuild(directory, count=count, queues=queues, keys=keys, body_size=size), output_format)


def ring(
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", parser=whole_number(64), help="Requests to one reader.")
    ] = 4_000_000,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", parser=whole_number(1), help="Rounds for each number of readers.")
    ] = 40,
    wake_ups: Annotated[
        int, typer.Option("--wake-ups", metavar="N", parser=whole_number(1), help="Frames to a reader that sleeps.")
    ] = 3_000,
    output_format: FormatOption = OutputFormat.TEXT,
) -> None:
    """Measure the ring between processes: to one reader, past many, to one that sleeps."""
    from reput.bench.ring import measure_ring

    print_report(measure_ring(requests=requests, rounds=rounds, wake_ups=wake_ups), output_format)


def print_report(report: dict[str, Any], output_format: OutputFormat) -> None:
    """Print a measurement: whole as JSON on one line, or for people its figures, with what is asked of them."""
    Printer(output_format, report_text).row(report)


def report_text(report: Mapping[str, Any]) -> str:
    """Return where a measurement was made, and a table of its figures."""
    from reput.bench.figures import figure_rows

    machine = report["machine"]
    where = f"{report['bench']} on {machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    rows = list(figure_rows(report))
    return f"{where}, {machine['file_system']}\n\n{table_text(rows, ('what', 'figure', 'unit', 'asked', 'kept'))}"
