"""A master and its copy under faults chosen by a seed.

``REPUT_SIMULATION_SEEDS=17`` or ``=0-999`` runs these seeds instead of the default ones.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

from simulation.replication import FAULTS, ReplicationSimulation

SEEDS = os.environ.get("REPUT_SIMULATION_SEEDS", "")


def run_seeds(seeds: range, directory, patch) -> Counter[str]:
    """Run the simulation of each seed, and return how often each fault happened."""
    faults: Counter[str] = Counter()
    for seed in seeds:
        ReplicationSimulation(seed, directory / str(seed), faults, patch).run()
        shutil.rmtree(directory / str(seed))
    return faults


def seeds_asked(default: range) -> range:
    """Return the seeds to run."""
    if not SEEDS:
        return default
    first, _, last = SEEDS.partition("-")
    return range(int(first), int(last or first) + 1)


def test_no_fault_stitches_two_histories_or_loses_what_was_acknowledged(memory_directory, monkeypatch):
    """A copy is the beginning of one history; it stops where its master has lost records."""
    run_seeds(seeds_asked(range(12)), memory_directory, monkeypatch)


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_runs_meet_every_fault(memory_directory, monkeypatch):
    """Each often enough to count."""
    faults = run_seeds(seeds_asked(range(1000)), memory_directory, monkeypatch)
    for name in FAULTS:
        print(f"{faults[name]:6} {name}")
    if not SEEDS:
        assert {name: faults[name] for name in FAULTS if faults[name] < 20} == {}
