"""The table of a run: each figure of reput beside those of the others, the goal, and whether it was met.

A run is kept in a file of JSON lines; the table is made from that file alone and can be made again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.figures import FIGURES
from benchmarks.rocketmq_peer import PEER_FIGURES
from benchmarks.timed_commands import BODY, TimedRun
from reput.bench.figures import Figure, figures_of

__all__ = ["OURSELVES", "WITHOUT_KERNEL", "Line", "Row", "failed_runs", "notes_of", "read_lines", "row_of", "rows_of"]

OURSELVES = "reput"
# reput again, beside a reput that has its kernel.
WITHOUT_KERNEL = "no kernel"

# The values of a figure, by contender and round.
Values = Mapping[str, Mapping[int, Sequence[float]]]


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the file. The first line has only *machine* and *notes*.

    Attributes:
        who: "reput", "no kernel", the version of RocketMQ, or the name of another contender.
        round: counts from 1.
    """

    machine: dict[str, Any] = {}
    notes: list[str] = []
    who: str = ""
    part: str = ""
    round: int = 0
    command: list[str] = []
    run: TimedRun | None = None


class Row(msgspec.Struct):
    """One figure: its goal, if any, and the measured values.

    Attributes:
        figure: the median over the rounds.
        least, most: over the rounds.
        better: whether "more" or "less" is better.
        peers: by contender, the median over the rounds.
        ratio: of *figure* to RocketMQ's, to the version that the goal names or to the best one; where RocketMQ has no
            such figure, to the best of the others.
        ratio_least, ratio_most: over the rounds.
        kept: None without a goal, or if the goal is relative and RocketMQ was not measured.
        other_load_cores: the highest value of the runs behind this row, see `TimedRun`; None: unknown.
    """

    part: str
    what: str
    unit: str
    asked: str
    better: str
    figure: float
    least: float
    most: float
    peers: dict[str, float]
    ratio: float | None
    ratio_least: float | None
    ratio_most: float | None
    kept: bool | None
    other_load_cores: float | None


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a run's file.

    Raises:
        OSError: the file cannot be read.
        msgspec.MsgspecError: the file is not such a file.
    """
    decode = msgspec.json.Decoder(Line).decode
    return [decode(line) for line in path.read_bytes().splitlines()]


def notes_of(lines: Iterable[Line]) -> list[str]:
    """Return the notes of a run: what was left out, and why."""
    left_out = (report.get("left_out") for line in lines if line.run is not None for report in line.run.reports)
    return list(dict.fromkeys([*(note for line in lines for note in line.notes), *filter(None, left_out)]))


def failed_runs(lines: Iterable[Line]) -> Iterator[str]:
    """Yield a sentence for every command that failed."""
    for line in lines:
        if line.run is not None and line.run.failed:
            yield f"round {line.round}, {line.part}: {line.who} {' '.join(line.command)}: {line.run.failed}"


class Seen(msgspec.Struct):
    """The measured values of one figure, by contender and round, and the load of other processes meanwhile."""

    part: str
    figure: Figure
    body: int
    values: dict[str, dict[int, list[float]]]
    loads: list[float]


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """Return a row for each figure of a run, in the order of its parts."""
    seen: dict[str, Seen] = {}
    theirs: list[tuple[str, int, Line, float]] = []
    for line in lines:
        for report in line.run.reports if line.run is not None else ():
            if "bench" not in report:
                theirs += [
                    (name, report.get("body", BODY), line, value)
                    for name, figure in PEER_FIGURES.items()
                    if (value := figure.of(report)) is not None
                ]
                continue
            body = report.get("body_size", BODY)
            for figure, found in figures_of(report, FIGURES):
                if body != BODY:
                    figure = of_body(figure, body)
                entry = seen.setdefault(figure.what, Seen(line.part, figure, body, defaultdict(dict), []))
                # Two parts may report this figure, but only the first one is about it.
                if entry.part == line.part:
                    add(entry, line, found)
    for entry in seen.values():
        for name, body, line, found in theirs:
            if (name, body) == (entry.figure.peer, entry.body):
                add(entry, line, found)
    ours = [entry for entry in seen.values() if OURSELVES in entry.values]
    return [row_of(entry.part, entry.figure, entry.values, entry.loads) for entry in ours]


def of_body(figure: Figure, body: int) -> Figure:
    """Return *figure* for another size of body, for which no goal was set."""
    size = f"{body} B" if body < BODY else f"{body // BODY} KiB"
    return msgspec.structs.replace(figure, what=f"{figure.what}, {size}", goal=None, multiple=None)


def add(entry: Seen, line: Line, found: float) -> None:
    """Add what a line's run found."""
    assert line.run is not None
    entry.values[line.who].setdefault(line.round, []).append(found)
    entry.loads.append(line.run.other_load_cores)


def row_of(part: str, figure: Figure, values: Values, loads: Sequence[float] = ()) -> Row:
    """Return the row of one figure, of which *values* holds ours at least."""
    rounds = {who: {number: statistics.median(found) for number, found in of.items()} for who, of in values.items()}
    ours = rounds.pop(OURSELVES)
    medians = {who: statistics.median(of.values()) for who, of in rounds.items()}
    middle = statistics.median(ours.values())
    ratio = ratio_of(middle, medians, figure)
    ratios = [
        found
        for number, value in ours.items()
        if (found := ratio_of(value, {who: of[number] for who, of in rounds.items() if number in of}, figure))
    ]
    kept = [] if figure.goal is None else [bool(figure.kept(middle))]
    if figure.multiple is not None and ratio is not None:
        kept.append(ratio >= figure.multiple if figure.bound == "at least" else ratio <= figure.multiple)
    told = figure.multiple is None or ratio is not None
    return Row(
        part=part,
        what=figure.what,
        unit=figure.unit,
        asked=figure.asked(),
        better="more" if figure.bound == "at least" else "less",
        figure=middle,
        least=min(ours.values()),
        most=max(ours.values()),
        peers=medians,
        ratio=ratio,
        ratio_least=min(ratios, default=None),
        ratio_most=max(ratios, default=None),
        kept=all(kept) if kept and (told or not all(kept)) else None,
        other_load_cores=max(loads, default=None),
    )


def ratio_of(ours: float, theirs: Mapping[str, float], figure: Figure) -> float | None:
    """Return our figure divided by theirs, or None if theirs is unknown."""
    # RocketMQ's versions are numbers, other contenders have names. Goals are multiples of RocketMQ's figures.
    rivals = {who: value for who, value in theirs.items() if who[0].isdigit()}
    if figure.peer_version is not None:
        rivals = {who: value for who, value in rivals.items() if who == figure.peer_version}
    elif not rivals and figure.multiple is None:
        rivals = {who: value for who, value in theirs.items() if who != WITHOUT_KERNEL}
    if not rivals:
        return None
    better = max(rivals.values()) if figure.bound == "at least" else min(rivals.values())
    return ours / better if better else None
