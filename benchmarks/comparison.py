"""The table of a run: each figure of reput beside RocketMQ's, the goal, and whether it was met.

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
from benchmarks.timed_commands import TimedRun
from reput.bench.figures import Figure, figures_of, shown, yes_or_no

__all__ = ["OURSELVES", "Line", "Row", "beside_rows", "failed_runs", "notes_of", "read_lines", "rows_of"]

OURSELVES = "reput"


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the file. The first line has only *machine* and *notes*.

    Attributes:
        who: "reput", or the version of RocketMQ.
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
        peers: by version of RocketMQ, the median over the rounds.
        ratio: of *figure* to RocketMQ's: to the version that the goal names, or to the better one.
        ratio_least, ratio_most: over the rounds.
        kept: None without a goal, or if the goal is relative and RocketMQ was not measured.
        other_load_cores: the highest value of the runs behind this row; see `TimedRun`.
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
    return [note for line in lines for note in line.notes]


def failed_runs(lines: Iterable[Line]) -> Iterator[str]:
    """Yield a sentence for every command that failed."""
    for line in lines:
        if line.run is not None and line.run.failed:
            yield f"round {line.round}, {line.part}: {line.who} {' '.join(line.command)}: {line.run.failed}"


def beside_rows(rows: Iterable[Row]) -> list[dict[str, str]]:
    """Return the table's rows as text, with a column for each version of RocketMQ."""
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
    """Return the range of the ratios over the rounds, or nothing after a single round."""
    if row.ratio_least is None or row.ratio_most is None or row.ratio_least == row.ratio_most:
        return ""
    return f"{row.ratio_least:.2f}-{row.ratio_most:.2f}"


class Seen(msgspec.Struct):
    """The measured values of one figure, by round."""

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
        for report in line.run.reports if line.run is not None else ():
            assert line.run is not None
            if line.who == OURSELVES:
                for figure, found in figures_of(report, FIGURES):
                    entry = seen.setdefault(figure.what, Seen(line.part, figure, {}, []))
                    if entry.part != line.part:
                        # Two parts report this figure, but only the first one is about it.
                        continue
                    entry.ours.setdefault(line.round, []).append(found)
                    entry.loads.append(line.run.other_load_cores)
                continue
            for name, peer_figure in PEER_FIGURES.items():
                value = peer_figure.of(report)
                if value is not None:
                    theirs[name][line.who][line.round] = value
                    peer_loads[name].append(line.run.other_load_cores)
    return [row_of(entry, theirs.get(entry.figure.peer or "", {}), peer_loads) for entry in seen.values()]


def row_of(entry: Seen, theirs: Mapping[str, Mapping[int, float]], peer_loads: Mapping[str, list[float]]) -> Row:
    """Return the row of one figure. *theirs* holds RocketMQ's values by version and round."""
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
    """Return our figure divided by RocketMQ's, or None if theirs is unknown."""
    if figure.peer_version is not None:
        theirs = {version: value for version, value in theirs.items() if version == figure.peer_version}
    if not theirs:
        return None
    better = max(theirs.values()) if figure.bound == "at least" else min(theirs.values())
    return ours / better if better else None
