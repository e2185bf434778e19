"""Whole stores under faults chosen by a seed.

``REPUT_SIMULATION_SEEDS=17`` or ``=2000-9999`` runs these seeds instead of the default ones.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from simulation.simulation import FAULTS, Simulation

SEEDS = os.environ.get("REPUT_SIMULATION_SEEDS", "0-1999")
# Parts of this size keep a run's workers evenly busy.
PART_SIZE = 250
FAULT_COUNT_MIN = 25


def parts() -> list[range]:
    """Return the seeds in parts, one test per part."""
    first, _, last = SEEDS.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    return [seeds[begin : begin + PART_SIZE] for begin in range(0, len(seeds), PART_SIZE)]


def run_seeds(seeds: range, directory: Path) -> Counter[str]:
    """Run the simulation of each seed, each in a fresh store, and return how often each fault happened."""
    faults: Counter[str] = Counter()
    for seed in seeds:
        store = directory / str(seed)
        Simulation(seed, store, faults).run()
        shutil.rmtree(store)
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("seeds", parts(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_no_fault_breaks_a_promise(seeds, memory_directory):
    """Acknowledged messages exist, the log is what was put, and the views catch up with it."""
    faults = run_seeds(seeds, memory_directory)
    for name in FAULTS:
        print(f"{faults[name]:6} {name}")
    if len(seeds) == PART_SIZE:
        assert {name: faults[name] for name in FAULTS if faults[name] < FAULT_COUNT_MIN} == {}


def test_a_seed_replays(memory_directory):
    """The same operations, the same faults, the same bytes of the log."""
    first, second = Counter(), Counter()
    logs = []
    for name, faults in (("a", first), ("b", second)):
        simulation = Simulation(5, memory_directory / name, faults)
        simulation.run()
        logs.append((simulation.done, [record.data for record in simulation.expected.records]))
    assert logs[0] == logs[1]
    assert first == second
