"""`reput bench`: reput's own measurements, with the machine's facts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli.terminal.options import OutputFormat, epilog, whole_number
from reput.cli.terminal.output import Printer, table_text
from reput.errors import ConfigError

__all__ = ["register"]

EXAMPLES = {
    "append": "reput bench append --count 50000 --seconds 1",
    "consume": "reput bench consume --count 20000 --wake-ups 200 --delayed 1000",
    "dispatch": "reput bench dispatch --count 2000 --restarts 3 --seconds 1",
    "export": "reput bench export --bytes 16777216 --no-spark",
    "growth": "reput bench growth --only topics --topics 50 --rounds 1",
    "open": "reput bench open --bytes 4194304 --rounds 1",
    "read": "reput bench read --count 50000",
    "rebuild": "reput bench rebuild --count 50000",
    "serve": "reput bench serve --count 2000",
    "sync": "reput bench sync --count 5000",
}
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        metavar="D",
        help="Directory for the scratch store, which is removed afterwards; default: in /tmp.",
    ),
]
SizeOption = Annotated[int, typer.Option("--size", metavar="B", parser=whole_number(), help="Body size in bytes.")]
SecondsOption = Annotated[
    int,
    typer.Option("--seconds", metavar="S", parser=whole_number(1), help="Seconds of puts at a steady rate."),
]
ReportOption = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        help="One JSON object with the machine's facts, or as text a table with the goal for each figure.",
    ),
]
KeysOption = Annotated[int, typer.Option("--keys", metavar="K", parser=whole_number(), help="Keys per message.")]


def append(
    directory: DirectoryOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages per run.")
    ] = 1_000_000,
    size: SizeOption = 1024,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", parser=whole_number(1), help="Messages per batch.")
    ] = 64,
    seconds: SecondsOption = 10,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure puts while their views keep up: one by one, in batches, and from put to readable."""
    from reput.bench.append import measure_append

    report = measure_append(directory, count=count, body_size=size, batch=batch, latency_seconds=seconds)
    print_report(report, output_format)


def beside(context: typer.Context) -> None:
    """Measure reput beside RocketMQ, SQLite and others. In a checkout only: it runs `python -m benchmarks.beside`."""
    for folder in (Path.cwd(), *Path(__file__).parents):
        if (folder / "benchmarks" / "beside.py").is_file():
            arguments = [sys.executable, "-m", "benchmarks.beside", *context.args]
            os.execve(sys.executable, arguments, {**os.environ, "PYTHONPATH": str(folder)})
    raise ConfigError(
        f"this benchmark is not in the installed package: directory={Path.cwd()}", "Run it in a checkout of reput."
    )


def consume(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 300_000,
    size: SizeOption = 1024,
    wake_ups: Annotated[
        int,
        typer.Option("--wake-ups", metavar="N", parser=whole_number(1), help="Messages sent to a waiting consumer."),
    ] = 3_000,
    delayed: Annotated[
        int,
        typer.Option(
            "--delayed", metavar="N", parser=whole_number(), help="Delayed messages waiting in the background."
        ),
    ] = 100_000,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure a consumer in the program: all messages, one tag of a hundred, from put to receive, waiting pulls."""
    from reput.bench.consume import measure_consume

    report = measure_consume(directory, count=count, body_size=size, wake_ups=wake_ups, delayed=delayed)
    print_report(report, output_format)


def export(
    directory: DirectoryOption = None,
    size: Annotated[
        int, typer.Option("--bytes", metavar="B", parser=whole_number(1), help="Size of the log in bytes.")
    ] = 1 << 30,
    body: SizeOption = 1024,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Measure only the decoding.")] = False,
    trickle: Annotated[
        int, typer.Option("--trickle", metavar="S", parser=whole_number(1), help="Seconds at 100 messages per second.")
    ] = 30,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure the export to a lake: decoding, export, a backlog, single messages, Spark's start and memory."""
    from reput.bench.export import measure_export

    report = measure_export(directory, size=size, body_size=body, with_spark=not no_spark, trickle_seconds=trickle)
    print_report(report, output_format)


def growth(
    directory: DirectoryOption = None,
    topics: Annotated[
        int | None, typer.Option("--topics", metavar="N", parser=whole_number(11), help="Topics; default: 1,000.")
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option("--groups", metavar="N", parser=whole_number(11), help="Waiting groups; default: 500."),
    ] = None,
    delayed: Annotated[
        int | None,
        typer.Option("--delayed", metavar="N", parser=whole_number(11), help="Delayed messages; default: 50,000."),
    ] = None,
    chain: Annotated[
        int | None,
        typer.Option("--chain", metavar="N", parser=whole_number(101), help="Messages with one key; default: 50,000."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="topics, groups, delayed or chain; may be repeated."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Defaults of 20,000 topics, 5,000 groups, a million delayed messages, 500,000 with one key."
        ),
    ] = False,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", parser=whole_number(1), help="Measurements of each store.")
    ] = 5,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure how costs grow with topics, waiting groups, delayed messages and messages with one key.

    The options give the largest store; smaller ones are measured in turns with it.
    """
    from reput.bench.growth import measure_growth, sizes_up_to

    sizes = sizes_up_to(full, only or (), topics=topics, groups=groups, delayed=delayed, chain=chain)
    Printer(output_format, growth_text).row(measure_growth(directory, sizes=sizes, rounds=rounds))


def growth_text(report: Mapping[str, Any]) -> str:
    """Return the machine's facts, and a table of the results."""
    from reput.bench.growth import GROWTH_COLUMNS, growth_rows
    from reput.bench.machine import machine_text

    return f"growth on {machine_text(report['machine'])}\n\n{table_text(growth_rows(report), GROWTH_COLUMNS)}"


def dispatch(
    directory: DirectoryOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Puts per round.")
    ] = 20_000,
    size: SizeOption = 1024,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", parser=whole_number(1), help="Kills of the consume queue.")
    ] = 20,
    backstop_puts: Annotated[
        int | None,
        typer.Option(
            "--backstop-puts",
            metavar="N",
            parser=whole_number(1),
            help="Puts at random intervals, to find missed wake-ups; default: as many as in a round. A million take "
            "about ten minutes.",
        ),
    ] = None,
    seconds: SecondsOption = 10,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure what dispatchers cost per put, how soon they see it, and how soon they are back after a kill."""
    from reput.bench.dispatch import measure_dispatch

    report = measure_dispatch(
        directory,
        count=count,
        body_size=size,
        restarts=restarts,
        backstop_puts=backstop_puts,
        latency_seconds=seconds,
    )
    print_report(report, output_format)


def open_store(
    directory: DirectoryOption = None,
    log_bytes: Annotated[
        int, typer.Option("--bytes", metavar="B", parser=whole_number(1 << 20), help="Size of the log in bytes.")
    ] = 1 << 30,
    size: SizeOption = 1024,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", parser=whole_number(1), help="Openings of each kind, and checks.")
    ] = 3,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure the time until a store is usable, after a close and after a kill, and how fast a log is checked."""
    from reput.bench.open import measure_open

    print_report(measure_open(directory, size=log_bytes, body_size=size, rounds=rounds), output_format)


def read(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 600_000,
    size: SizeOption = 1024,
    keys: KeysOption = 2,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure reads: in order with 32 per get, single ones at random, by key."""
    from reput.bench.read import measure_read

    print_report(measure_read(directory, count=count, keys=keys, body_size=size), output_format)


def rebuild(
    directory: DirectoryOption = None,
    count: Annotated[int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages.")] = 1_000_000,
    queues: Annotated[int, typer.Option("--queues", metavar="Q", parser=whole_number(1), help="Queues.")] = 4,
    size: SizeOption = 1024,
    keys: KeysOption = 2,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure how fast consume queue and index are rebuilt from a log, side by side."""
    from reput.bench.rebuild import measure_rebuild

    print_report(measure_rebuild(directory, count=count, queues=queues, keys=keys, body_size=size), output_format)


def serve(
    directory: DirectoryOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages per rate.")
    ] = 200_000,
    size: SizeOption = 1024,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", parser=whole_number(1), help="Tasks that put at the same time."),
    ] = 256,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure a broker through the Python client: puts, batches, receiving, latency, start, memory."""
    from reput.bench.serve import measure_serve

    report = measure_serve(directory, count=count, body_size=size, in_flight=in_flight)
    print_report(report, output_format)


def sync(
    directory: DirectoryOption = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", parser=whole_number(1), help="Messages per run.")
    ] = 100_000,
    size: SizeOption = 1024,
    threads: Annotated[int, typer.Option("--threads", metavar="N", parser=whole_number(1), help="Threads.")] = 64,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", parser=whole_number(1), help="Concurrent tasks in one event loop."),
    ] = 1024,
    output_format: ReportOption = OutputFormat.JSON,
) -> None:
    """Measure puts that wait for the disk: from many threads, and from many tasks of one event loop."""
    from reput.bench.sync import measure_sync

    report = measure_sync(directory, count=count, body_size=size, threads=threads, in_flight=in_flight)
    print_report(report, output_format)


def print_report(report: dict[str, Any], output_format: OutputFormat) -> None:
    """Print a measurement: as one line of JSON, or as a table of its figures and their goals."""
    Printer(output_format, report_text).row(report)


def report_text(report: Mapping[str, Any]) -> str:
    """Return the machine's facts, and a table of the figures."""
    from reput.bench.figures import figure_rows
    from reput.bench.machine import machine_text

    rows = list(figure_rows(report))
    table = table_text(rows, ("what", "figure", "unit", "asked", "kept"))
    return f"{report['bench']} on {machine_text(report['machine'])}\n\n{table}"


def register(application: typer.Typer) -> None:
    """Add the verbs to *application*."""
    for name, measure in (
        ("append", append),
        ("consume", consume),
        ("dispatch", dispatch),
        ("export", export),
        ("growth", growth),
        ("open", open_store),
        ("read", read),
        ("rebuild", rebuild),
        ("serve", serve),
        ("sync", sync),
    ):
        application.command(name, epilog=epilog(EXAMPLES[name]))(measure)
    # This verb passes options and help through to the benchmark itself.
    application.command(
        "beside",
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(beside)
