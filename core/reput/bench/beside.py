"""reput and RocketMQ beside each other: the same work, on the same machine, in turns.

    round 1   append    reput │ RocketMQ 4.9.7 │ RocketMQ 5.3.3 │ RocketMQ 5.5.0
              read      RocketMQ 5.5.0 │ reput │ RocketMQ 4.9.7 │ RocketMQ 5.3.3        whoever begins changes
              …
    round 2   append    …

Each turn is a command in a process of its own. What it prints, how long it took and what else the machine did meanwhile
is one line of JSON in the file that the run is kept in; the table is made of that file alone, and can be made again.
Parts that RocketMQ has nothing like are measured once: they take turns with themselves.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reput.bench.figures import Figure, figures_of, shown, yes_or_no
from reput.bench.machine import machine_facts
from reput.bench.peer import PEER_COMMANDS, PEER_FIGURES, VERSIONS, Peer
from reput.bench.scratch import scratch_directory, spread_directories
from reput.bench.turns import REPUT, Command, Turn, run_turn, user_environment

__all__ = [
    "PARTS",
    "USUAL_PARTS",
    "Line",
    "Part",
    "Row",
    "beside_rows",
    "failed_turns",
    "measure_beside",
    "notes_of",
    "read_lines",
    "rows_of",
]

OURSELVES = "reput"
# Everything but the sizes of the work: a turn that takes longer hangs.
TURN_TIMEOUT_S = 240.0


class Part(msgspec.Struct, frozen=True):
    """One part of a run: commands of `reput bench`, and RocketMQ's of the same work."""

    reput: tuple[Command, ...]
    peer: tuple[str, ...] = ()


PARTS = {
    "append": Part(
        (Command(("append",), (("--count", 1_000_000, 2_000), ("--seconds", 10, 1))),),
        ("put", "visible"),
    ),
    "sync": Part((Command(("sync",), (("--count", 100_000, 1_024),)),), ("put to disk", "put to disk, in flight")),
    "read": Part((Command(("read",), (("--count", 600_000, 2_000),)),), ("read",)),
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
                ("dispatch", "--misbehaviour-seconds", "0"),
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
}


# It takes minutes, so it is measured only where it is named.
SLOW_PART = "isolation"
PARTS[SLOW_PART] = Part(
    (
        Command(
            ("dispatch", "--count", "1000", "--restarts", "1", "--seconds", "1"), (("--misbehaviour-seconds", 2, 1),)
        ),
    )
)
USUAL_PARTS = tuple(name for name in PARTS if name != SLOW_PART)


class Line(msgspec.Struct, omit_defaults=True):
    """One line of a run's file. Of the first only *machine* and *notes* are there.

    Attributes:
        who: "reput", or the version of RocketMQ.
        round: from 1 on.
    """

    machine: dict[str, Any] = {}
    notes: list[str] = []
    who: str = ""
    part: str = ""
    round: int = 0
    command: list[str] = []
    turn: Turn | None = None


class Row(msgspec.Struct):
    """One goal, or one figure without a goal: what was asked and what was seen.

    Attributes:
        figure: the median over the rounds.
        least, most: of the rounds.
        peers: by version of RocketMQ, the median over the rounds.
        ratio: of *figure* to RocketMQ's: that of the version that is asked for, or of the better one.
        ratio_least, ratio_most: of the rounds.
        kept: None where nothing is asked, or RocketMQ is and was not measured.
        other_load_cores: the most in any turn that the row is made of; see `Turn`.
    """

    part: str
    what: str
    unit: str
    asked: str
    figure: float
    least: float
    most: float
    peers: dict[str, float]
    ratio: float | None
    ratio_least: float | None
    ratio_most: float | None
    kept: bool | None
    other_load_cores: float


def measure_beside(
    out: Path,
    *,
    peer: Path | None = None,
    versions: Sequence[str] = VERSIONS,
    parts: Sequence[str] = USUAL_PARTS,
    rounds: int = 2,
    minutes: float = 20.0,
    quick: bool = False,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Measure, and write a line to *out* for each turn as soon as it is over.

    Args:
        peer: the program that measures RocketMQ, or its folder; None: RocketMQ is not measured.
        minutes: no turn begins after that; the first round of each part comes before the second of any.
        quick: with so little work that the figures mean nothing, to see that everything is there.
        directory: where scratch stores are made and removed; None: the system's place for such.
        say: is told what comes next, and what is left out.
    """
    log = out.with_name(out.name + ".log")
    encode = msgspec.json.Encoder().encode
    with scratch_directory(directory) as scratch:
        # RocketMQ makes its stores there, too.
        spread_directories(scratch)
        log.write_bytes(b"")
        program = None if peer is None else Peer(peer, versions, scratch, log)
        notes = (
            list(program.build()) if program else ["RocketMQ is not measured, as no program that does it was named."]
        )
        if quick:
            notes.append("So little is done that the figures mean nothing.")
        for note in notes:
            say(note)
        with out.open("wb") as file:
            file.write(encode(Line(machine=machine_facts(scratch), notes=notes)) + b"\n")
            until = time.monotonic() + minutes * 60
            for line in turns(program, parts, rounds, quick=quick):
                if time.monotonic() > until:
                    note = f"the time is up: minutes={minutes:g} next={line.part} round={line.round}"
                    say(note)
                    file.write(encode(Line(notes=[note])) + b"\n")
                    return
                say(f"round {line.round}, {line.part}: {line.who} {' '.join(line.command)}")
                line.turn = take_turn(line, program, scratch, log)
                if line.turn.failed:
                    say(f"failed: {line.turn.failed}")
                file.write(encode(line) + b"\n")
                file.flush()


def turns(program: Peer | None, parts: Sequence[str], rounds: int, *, quick: bool) -> Iterator[Line]:
    """Yield what is to be measured, in its order; the turns themselves are still to be taken."""
    beginner = itertools.count()
    for number in range(1, rounds + 1):
        for name in parts:
            part = PARTS[name]
            if number > 1 and not part.peer:
                continue
            work = {OURSELVES: [command.line(quick=quick) for command in part.reput]}
            if program is not None:
                commands = [PEER_COMMANDS[peer].line(quick=quick) for peer in part.peer]
                work |= {version: commands for version in program.versions if commands}
            first = next(beginner) % len(work)
            for who in [*work, *work][first : first + len(work)]:
                for command in work[who]:
                    yield Line(who=who, part=name, round=number, command=command)


def take_turn(line: Line, program: Peer | None, scratch: Path, log: Path) -> Turn:
    """Run the command of *line*."""
    if line.who != OURSELVES:
        assert program is not None
        return program.measure(line.who, line.command, TURN_TIMEOUT_S)
    command = [*REPUT, "bench", *line.command, "--format", "json"]
    return run_turn(command, TURN_TIMEOUT_S, environment=user_environment() | {"TMPDIR": str(scratch)}, errors=log)


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a run's file.

    Raises:
        OSError: it cannot be read.
        msgspec.MsgspecError: it is no such file.
    """
    decode = msgspec.json.Decoder(Line).decode
    return [decode(line) for line in path.read_bytes().splitlines()]


def notes_of(lines: Iterable[Line]) -> list[str]:
    """Return what is to be known of a run besides its figures: what was left out."""
    return [note for line in lines for note in line.notes]


def failed_turns(lines: Iterable[Line]) -> Iterator[str]:
    """Yield a sentence for every turn that was not measured, or not whole."""
    for line in lines:
        if line.turn is not None and line.turn.failed:
            yield f"round {line.round}, {line.part}: {line.who} {' '.join(line.command)}: {line.turn.failed}"


def beside_rows(rows: Iterable[Row]) -> list[dict[str, str]]:
    """Return the rows of a run's table for people, with a column for each version of RocketMQ."""
    rows = list(rows)
    versions = sorted({version for row in rows for version in row.peers})
    return [
        {
            "what": row.what,
            "asked": row.asked,
            "unit": row.unit,
            "reput": shown(row.figure),
            "from": shown(row.least) if row.least != row.most else "",
            "to": shown(row.most) if row.least != row.most else "",
            **{version: shown(row.peers.get(version)) for version in versions},
            "ratio": "" if row.ratio is None else f"{row.ratio:.2f}",
            "ratios": ratios_text(row),
            "kept": yes_or_no(row.kept),
            "others": f"{row.other_load_cores:.2f}",
        }
        for row in rows
    ]


def ratios_text(row: Row) -> str:
    """Return from where to where the ratio went, nothing where there is one round."""
    if row.ratio_least is None or row.ratio_most is None or row.ratio_least == row.ratio_most:
        return ""
    return f"{row.ratio_least:.2f}-{row.ratio_most:.2f}"


class Seen(msgspec.Struct):
    """What was seen of one figure: by who, by round."""

    part: str
    figure: Figure
    ours: dict[int, list[float]]
    loads: list[float]


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """Return a row for each figure of a run, in the order of its parts."""
    seen: dict[str, Seen] = {}
    theirs: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    peer_loads: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for report in line.turn.reports if line.turn is not None else ():
            assert line.turn is not None
            if line.who == OURSELVES:
                for figure, found in figures_of(report):
                    entry = seen.setdefault(figure.what, Seen(line.part, figure, {}, []))
                    if entry.part != line.part:
                        # Two parts have it; the first one is about it.
                        continue
                    entry.ours.setdefault(line.round, []).append(found)
                    entry.loads.append(line.turn.other_load_cores)
                continue
            for name, peer_figure in PEER_FIGURES.items():
                value = peer_figure.of(report)
                if value is not None:
                    theirs[name][line.who][line.round] = value
                    peer_loads[name].append(line.turn.other_load_cores)
    return [row_of(entry, theirs.get(entry.figure.peer or "", {}), peer_loads) for entry in seen.values()]


def row_of(entry: Seen, theirs: Mapping[str, Mapping[int, float]], peer_loads: Mapping[str, list[float]]) -> Row:
    """Return the row of one figure, of which *theirs* has RocketMQ's by version and round."""
    figure = entry.figure
    ours = {number: statistics.median(values) for number, values in entry.ours.items()}
    medians = {version: statistics.median(values.values()) for version, values in sorted(theirs.items())}
    middle = statistics.median(ours.values())
    ratio = ratio_of(middle, medians, figure)
    ratios = [
        found
        for number, value in ours.items()
        if (found := ratio_of(value, {version: of[number] for version, of in theirs.items() if number in of}, figure))
    ]
    kept = [] if figure.goal is None else [bool(figure.kept(middle))]
    if figure.multiple is not None and ratio is not None:
        kept.append(ratio >= figure.multiple if figure.bound == "at least" else ratio <= figure.multiple)
    told = figure.multiple is None or ratio is not None
    return Row(
        part=entry.part,
        what=figure.what,
        unit=figure.unit,
        asked=figure.asked(),
        figure=middle,
        least=min(ours.values()),
        most=max(ours.values()),
        peers=medians,
        ratio=ratio,
        ratio_least=min(ratios, default=None),
        ratio_most=max(ratios, default=None),
        kept=all(kept) if kept and (told or not all(kept)) else None,
        other_load_cores=max([*entry.loads, *peer_loads.get(figure.peer or "", [])]),
    )


def ratio_of(ours: float, theirs: Mapping[str, float], figure: Figure) -> float | None:
    """Return how many times RocketMQ's figure ours is, None where theirs is not known."""
    if figure.peer_version is not None:
        theirs = {version: value for version, value in theirs.items() if version == figure.peer_version}
    if not theirs:
        return None
    better = max(theirs.values()) if figure.bound == "at least" else min(theirs.values())
    return ours / better if better else None
