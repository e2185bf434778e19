"""reput beside RocketMQ's store, SQLite and other brokers: the same work, on the same machine, alternating.

    round 1   append    reput │ no kernel │ RocketMQ 4.9.7 │ RocketMQ 5.3.3 │ RocketMQ 5.5.0 │ SQLite
              clients   NATS │ Redis │ reput │ no kernel                                  the first one rotates
              …
    round 2   append    …

Each command runs in its own process. Its report, its duration and the load of other processes meanwhile are one line of
JSON in the file that keeps the run. Parts without a counterpart run in the first round only.

    python -m benchmarks.beside --peer DIR
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.comparison import OURSELVES, WITHOUT_KERNEL, Line, failed_runs, notes_of, read_lines, rows_of
from benchmarks.formats import FORMATS, print_run
from benchmarks.rocketmq_peer import PEER_COMMANDS, VERSIONS, Peer
from benchmarks.timed_commands import BODY, Command, TimedRun, run_command
from reput.bench.machine import machine_facts
from reput.bench.scratch import scratch_directory, spread_directories
from reput.bench.user_command import REPUT, user_environment
from reput.kernel import kernel_version

__all__ = ["PARTS", "USUAL_PARTS", "Part", "main", "measure_beside", "runs_in_order"]

CHECKOUT = Path(__file__).parents[1]
# Measurements in this folder. All others are verbs of `reput bench`.
DEVELOPERS = ("flat", "misbehaviour", "ring")
SQLITE = "SQLite"
# Far more than any command needs; a command that takes longer hangs.
RUN_TIMEOUT_S = 240.0


class Part(msgspec.Struct, frozen=True):
    """One part of a run.

    Attributes:
        reput: the commands that measure reput.
        peer: RocketMQ's commands for the same work.
        others: further contenders, which understand the commands of *reput*.
    """

    reput: tuple[Command, ...]
    peer: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


PARTS = {
    "append": Part(
        (Command(("append",), (("--count", 1_000_000, 2_000), ("--seconds", 10, 1)), "--size"),),
        ("put", "visible"),
        (SQLITE,),
    ),
    "sync": Part(
        (Command(("sync",), (("--count", 100_000, 1_024),), "--size"),),
        ("put to disk", "put to disk, in flight"),
        (SQLITE,),
    ),
    "read": Part((Command(("read",), (("--count", 600_000, 2_000),), "--size"),), ("read",), (SQLITE,)),
    "open": Part((Command(("open",), (("--bytes", 1 << 30, 1 << 20), ("--rounds", 3, 1))),), ("open",)),
    "rebuild": Part(
        (
            Command(("rebuild", "--queues", "1"), (("--count", 600_000, 2_000),)),
            Command(("rebuild", "--queues", "1000"), (("--count", 600_000, 2_000),)),
        ),
        ("rebuild, one queue", "rebuild, 1,000 queues"),
    ),
    "dispatch": Part(
        (
            Command(
                ("dispatch",),
                (("--count", 20_000, 200), ("--restarts", 20, 1), ("--seconds", 10, 1)),
            ),
        )
    ),
    "flat": Part(
        (Command(("flat",), (("--queues", 10_000, 20), ("--segments", 100, 2), ("--rounds", 31, 1))),),
    ),
    "ring": Part(
        (Command(("ring",), (("--requests", 4_000_000, 64_000), ("--rounds", 40, 1), ("--wake-ups", 3_000, 20))),)
    ),
    "consume": Part((Command(("consume",), (("--count", 300_000, 640), ("--wake-ups", 3_000, 20))),)),
    "clients": Part(
        (
            Command(("clients", "--flush", "async"), (("--count", 100_000, 1_000),)),
            Command(("clients", "--flush", "sync"), (("--count", 20_000, 1_000),)),
        ),
        others=("NATS", "Redis"),
    ),
}


# The slow part takes minutes, so it runs only if --only names it.
SLOW_PART = "isolation"
PARTS[SLOW_PART] = Part((Command(("misbehaviour",), (("--seconds", 2, 1),)),))
USUAL_PARTS = tuple(name for name in PARTS if name != SLOW_PART)


def measure_beside(
    out: Path,
    *,
    peer: Path | None = None,
    versions: Sequence[str] = VERSIONS,
    parts: Sequence[str] = USUAL_PARTS,
    bodies: Sequence[int] = (BODY,),
    rounds: int = 2,
    minutes: float = 40.0,
    quick: bool = False,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Measure, and write a line to *out* after each command.

    Args:
        peer: the program that measures RocketMQ, or its folder; None: measure reput alone.
        bodies: sizes in bytes; 1,024 includes the commands that have no such option.
        minutes: start no command after this time; every part's first round comes before any second round.
        quick: run so little work that the figures mean nothing.
        directory: where scratch stores are created and removed; None: the system's temporary directory.
        say: receives a sentence for each step and for each omission.
    """
    log = out.with_name(out.name + ".log")
    encode = msgspec.json.Encoder().encode
    with scratch_directory(directory) as scratch:
        # RocketMQ creates its stores here, too.
        spread_directories(scratch)
        log.write_bytes(b"")
        program = None if peer is None else Peer(peer, versions, scratch, log)
        notes = list(program.build()) if program else ["RocketMQ is not measured: --peer names no program."]
        if kernel_version() is None:
            notes.append("The kernel is off or not installed: reput is measured without it.")
        if quick:
            notes.append("quick run: the figures mean nothing")
        for note in notes:
            say(note)
        with out.open("wb") as file:
            file.write(encode(Line(machine=machine_facts(scratch), notes=notes)) + b"\n")
            until = time.monotonic() + minutes * 60
            for line in runs_in_order(program, parts, bodies, rounds, quick=quick):
                if time.monotonic() > until:
                    note = f"the time is up: minutes={minutes:g} next={line.part} round={line.round}"
                    say(note)
                    file.write(encode(Line(notes=[note])) + b"\n")
                    return
                say(f"round {line.round}, {line.part}: {line.who} {' '.join(line.command)}")
                line.run = run_line(line, program, scratch, log)
                for sentence in [*notes_of([line]), *failed_runs([line])]:
                    say(sentence)
                file.write(encode(line) + b"\n")
                file.flush()


def runs_in_order(
    program: Peer | None, parts: Sequence[str], bodies: Sequence[int], rounds: int, *, quick: bool
) -> Iterator[Line]:
    """Yield a line for each command to run, in order, still without its result."""
    beginner = itertools.count()
    ourselves = [OURSELVES] if kernel_version() is None else [OURSELVES, WITHOUT_KERNEL]
    for number, name, body in itertools.product(range(1, rounds + 1), parts, bodies):
        part = PARTS[name]
        if number > 1 and not (part.peer or part.others):
            continue
        peer = [PEER_COMMANDS[command] for command in part.peer]
        work = {who: list(part.reput) for who in [*ourselves, *part.others]}
        work |= dict.fromkeys(program.versions if program is not None else (), peer)
        lines = {
            who: sized
            for who, commands in work.items()
            if (sized := [command.line(quick=quick, body=body) for command in commands if command.body or body == BODY])
        }
        if not lines:
            continue
        first = next(beginner) % len(lines)
        for who in [*lines, *lines][first : first + len(lines)]:
            for command in lines[who]:
                yield Line(who=who, part=name, round=number, command=command)


def run_line(line: Line, program: Peer | None, scratch: Path, log: Path) -> TimedRun:
    """Run the command of *line*."""
    if line.who[0].isdigit():
        assert program is not None
        return program.measure(line.who, line.command, RUN_TIMEOUT_S)
    word, *options = line.command
    if line.who == SQLITE:
        command = [sys.executable, "-m", "benchmarks.sqlite", *line.command]
    elif word == "clients":
        broker = OURSELVES if line.who == WITHOUT_KERNEL else line.who
        command = [sys.executable, "-m", "benchmarks.clients", broker, *options]
    elif word in DEVELOPERS:
        command = [sys.executable, "-m", f"benchmarks.{word}", *options]
    else:
        command = [*REPUT, "bench", word, *options, "--format", "json"]
    environment = user_environment() | {"TMPDIR": str(scratch), "PYTHONPATH": str(CHECKOUT)}
    if line.who == WITHOUT_KERNEL:
        environment["REPUT_KERNEL"] = "off"
    elif kernel_version() is not None:
        environment["REPUT_KERNEL"] = "require"
    return run_command(command, RUN_TIMEOUT_S, environment=environment, errors=log)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beside",
        description="Measure reput, RocketMQ, SQLite and other brokers side by side, alternating, and print goals "
        "beside results. Without --peer, RocketMQ is left out. Exit code 1: a command failed; a missed goal is no "
        "failure.",
    )
    add = parser.add_argument
    add("--peer", type=Path, metavar="DIR", help="the program `peer`, which measures RocketMQ, or its folder")
    add("--version", action="append", metavar="V", help=f"a version of RocketMQ, repeatable; default {VERSIONS}")
    add("--only", action="append", choices=PARTS, metavar="PART", help=f"a part, repeatable: {', '.join(PARTS)}")
    add("--body", action="append", type=int, metavar="B", help=f"a size of body, repeatable; default {BODY}")
    add("--rounds", type=int, default=2, metavar="N", help="how often each command runs; default 2")
    add("--minutes", type=float, default=40.0, metavar="M", help="start nothing after that; default 40")
    add("--quick", action="store_true", help="do so little work that the figures mean nothing")
    add(
        "--out", type=Path, default=Path("beside.jsonl"), metavar="FILE", help="keeps the run, one JSON object per line"
    )
    add("--from", type=Path, dest="again", metavar="FILE", help="measure nothing, print the table of a kept run")
    add("--directory", type=Path, metavar="D", help="where scratch stores are made and removed")
    add("--format", choices=FORMATS, default="text", help="a table, one JSON object per figure, or a chart")
    add("--page", type=Path, metavar="FILE", help="a page whose table, between its marks, and chart are made anew")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    asked = parser().parse_args(arguments)
    if asked.again is None:
        measure_beside(
            asked.out,
            peer=asked.peer,
            versions=asked.version or VERSIONS,
            parts=asked.only or USUAL_PARTS,
            bodies=asked.body or (BODY,),
            rounds=asked.rounds,
            minutes=asked.minutes,
            quick=asked.quick,
            directory=asked.directory,
            say=lambda sentence: print(f"reput: {sentence}", file=sys.stderr, flush=True),
        )
    try:
        lines = read_lines(asked.again or asked.out)
        if asked.again is not None:
            for note in notes_of(lines):
                print(f"reput: {note}", file=sys.stderr)
        return print_run(lines, rows_of(lines), asked.format, asked.page, "beside")
    except (OSError, msgspec.MsgspecError) as error:
        parser().error(f"cannot read a run: path={asked.again or asked.out} error={error}")


if __name__ == "__main__":
    sys.exit(main())
