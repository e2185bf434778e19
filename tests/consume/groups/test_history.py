"""The history of producers and consumers is checked against the guarantees, through random kills."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from reput.store.config.config_json import parse_config

PROGRAM = Path(__file__).with_name("history_program.py")
KILLS = 4
GROUPS = ("billing", "audit")
LIMIT_S = 90


def run_program(store: Path, journal: Path, run: int, seed: int, mode: str) -> subprocess.Popen[str]:
    """Start the program and return it once its threads run."""
    program = subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), str(store), str(journal), str(run), str(seed), mode],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def committed(store: Path) -> dict[tuple[str, int], int]:
    """Return the offsets on disk by group and queue."""
    path = store / "config" / "consumerOffset.json"
    table = parse_config(path.read_text())["offsetTable"] if path.exists() else {}
    return {
        (group, queue_id): offset for group in GROUPS for queue_id, offset in table.get(f"orders@{group}", {}).items()
    }


@pytest.mark.slow
@pytest.mark.processes
def test_no_kill_loses_invents_or_disorders_a_message(tmp_path):
    """At least once: no committed message comes again, and none comes twice unless a consumer left."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    dice = random.Random(seed)
    store, journal = tmp_path / "store", tmp_path / "journal"
    floors = []
    for run in range(KILLS + 1):
        floors.append(committed(store))
        program = run_program(store, journal, run, seed, "drain" if run == KILLS else "work")
        try:
            if run == KILLS:
                assert program.wait(LIMIT_S) == 0
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    program.wait(0.3 + dice.random())
        finally:
            program.kill()
            program.wait()
            program.stdout.close()
    check_history(journal.read_text().splitlines(), floors)
    assert committed(store) == {
        key: offset for key, offset in committed(store).items() if offset >= floors[-1].get(key, 0)
    }


def check_history(lines: list[str], floors: list[dict[tuple[str, int], int]]) -> None:
    """Fail on any violation. *floors*: the committed offsets on disk before each run."""
    tried, put = set(), set()
    got: dict[str, set[str]] = defaultdict(set)
    place: dict[tuple[int, int], str] = {}
    # By run, group and queue: the consumer of the last delivered message, and its offset.
    last: dict[tuple[int, str, int], tuple[str, int]] = {}
    for line in lines:
        kind, *words = line.split(" ")
        if kind == "try":
            tried.add(words[0])
        elif kind == "put":
            put.add(words[0])
        else:
            run, group, consumer, queue_id, offset, body = words
            where = int(queue_id), int(offset)
            assert place.setdefault(where, body) == body, f"two messages at one place: {line}"
            floor = floors[int(run)].get((group, int(queue_id)), 0)
            assert int(offset) >= floor, f"given again, though committed: {line}"
            former = last.get((int(run), group, int(queue_id)))
            if former is not None and former[0] == consumer:
                assert int(offset) > former[1], f"out of its order: {line}"
            last[int(run), group, int(queue_id)] = consumer, int(offset)
            got[group].add(body)
    assert put
    for group in GROUPS:
        assert put - got[group] == set(), f"lost to {group}"
        assert got[group] - tried == set(), f"invented for {group}"


def test_the_checker_finds_what_may_not_happen():
    """A lost, an invented, a reordered and a repeated message."""
    good = ["try a", "put a", "try b", "put b"]
    given = [f"got 0 {group} 0.1 0 {number} {body}" for group in GROUPS for number, body in enumerate("ab")]
    check_history([*good, *given], [{}])
    with pytest.raises(AssertionError, match="lost"):
        check_history([*good, *given[1:]], [{}])
    with pytest.raises(AssertionError, match="invented"):
        check_history([*good, *given, "got 0 audit 0.1 0 2 c"], [{}])
    with pytest.raises(AssertionError, match="order"):
        check_history([*good, *given, given[0], given[0]], [{}])
    with pytest.raises(AssertionError, match="committed"):
        check_history([*good, *given], [{("billing", 0): 1}])
    with pytest.raises(AssertionError, match="two messages"):
        check_history([*good, *given, "got 0 audit 0.1 0 0 b"], [{}])
