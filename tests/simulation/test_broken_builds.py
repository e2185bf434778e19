"""Builds that are broken on purpose: the simulation must find each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.process.dispatcher.predecessors import Predecessors
from reput.ring import RingReader
from reput.ring.layout import WORD_SIZE
from reput.store.disk.files import WrittenFile
from reput.store.log.commit_log import CommitLog
from reput.store.recovery import cut_log, log_tail
from reput.store.state.epochs import Epochs
from reput.store.state.topic_deletions import TopicDeletions
from reput.store.writer import store_files
from simulation.simulated_disk import ProcessFiles, SimulatedDisk
from simulation.simulation import Simulation, SimulationFailed

SEED_COUNT_MAX = 300
# What has caught a build before; the others follow.
SEEDS_FIRST = (0, 34, 15, 2, 28, 68, 1)

Break = Callable[[pytest.MonkeyPatch], None]


def a_flush_lies(patch: pytest.MonkeyPatch) -> None:
    """The log's force reports success, but nothing reaches the disk."""
    force = SimulatedDisk.force
    patch.setattr(
        SimulatedDisk, "force", lambda disk, path: None if path.parent.name == "commitlog" else force(disk, path)
    )


def durable_moves_first(patch: pytest.MonkeyPatch) -> None:
    """The durable position moves when a force begins, and a failure is ignored."""

    def flush(log: CommitLog) -> int:
        log.durable = log.appended
        return log.durable

    patch.setattr(CommitLog, "flush", flush)


def names_of_segments_are_not_forced(patch: pytest.MonkeyPatch) -> None:
    """The barrier after the creation of a segment is omitted."""
    force_directory = ProcessFiles.force_directory
    patch.setattr(
        ProcessFiles,
        "force_directory",
        lambda files, path: None if path.name == "commitlog" else force_directory(files, path),
    )


def old_units_are_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    """Entries beyond a view's cursor stay when the view is truncated to it."""
    patch.setattr(WrittenFile, "zero_behind", lambda file, at: False)


def what_a_killed_writer_left_is_not_forced(patch: pytest.MonkeyPatch) -> None:
    """A recovered log counts as durable although it was never forced."""
    patch.setattr(store_files, "force_log", lambda files, segments, begin, end: None)


def the_log_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    """Old bytes stay after the end."""
    patch.setattr(cut_log, "cut_behind", lambda directory, segments, end, files: [])


def a_power_cut_counts_as_damage(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not check whether the unreadable bytes were ever forced."""
    patch.setattr(log_tail, "find_unforced", lambda directory, boot_id: None)


def a_cut_begins_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Views do not learn that the log was cut below them."""
    patch.setattr(Epochs, "begin", lambda epochs, start_offset, timestamp, located=None: epochs)


def a_reader_does_not_look_whether_it_was_lapped(patch: pytest.MonkeyPatch) -> None:
    """The ring's check after the copy is omitted."""

    def copy(reader: RingReader, position: int, size: int) -> bytes:
        capacity = reader._capacity
        data = reader._data.tobytes() * 2
        at = position % capacity
        return data[at : at + min(size, capacity) // WORD_SIZE * WORD_SIZE]

    patch.setattr(RingReader, "_copy", copy)


def the_consume_queue_does_not_wait_for_ext(patch: pytest.MonkeyPatch) -> None:
    """The barrier of ``after`` is omitted."""
    patch.setattr(Predecessors, "passes_over", lambda predecessors, cell: True)


def ext_units_are_not_forced(patch: pytest.MonkeyPatch) -> None:
    """The ext dispatcher reports that its units are durable, but nothing reaches the disk."""
    # Every run has ext files; otherwise this takes hundreds of seeds.
    patch.setattr(Simulation, "ext_share", 1.0)
    force = SimulatedDisk.force
    patch.setattr(
        SimulatedDisk, "force", lambda disk, path: None if "consumequeue_ext" in path.parts else force(disk, path)
    )


def a_deletion_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A view that reads the log late or again does not learn which topics were deleted meanwhile."""
    patch.setattr(TopicDeletions, "following", lambda deletions, commit_log_offset: [])


def a_deletion_stays_behind_the_end_of_a_cut_log(patch: pytest.MonkeyPatch) -> None:
    """It applies to records that were put after it."""
    patch.setattr(TopicDeletions, "move_before", lambda deletions, commit_log_offset, files: None)


BUILDS: list[Break] = [
    a_flush_lies,
    durable_moves_first,
    names_of_segments_are_not_forced,
    old_units_are_not_zeroed,
    what_a_killed_writer_left_is_not_forced,
    the_log_is_not_cut,
    a_power_cut_counts_as_damage,
    a_cut_begins_no_epoch,
    a_reader_does_not_look_whether_it_was_lapped,
    the_consume_queue_does_not_wait_for_ext,
    ext_units_are_not_forced,
    a_deletion_is_forgotten,
    a_deletion_stays_behind_the_end_of_a_cut_log,
]


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_a_broken_build_is_caught(build: Break, memory_directory: Path, monkeypatch: pytest.MonkeyPatch):
    """Within a few seeds; the failure names the seed."""
    build(monkeypatch)
    seeds = (*SEEDS_FIRST, *(seed for seed in range(SEED_COUNT_MAX) if seed not in SEEDS_FIRST))
    failure = next(filter(None, (failure_of(seed, memory_directory) for seed in seeds)), "none found")
    print(failure)
    assert failure.startswith("seed=")
    # A break that no longer matches the changed code proves nothing.
    assert "TypeError" not in failure


def failure_of(seed: int, directory: Path) -> str | None:
    """Return the first line of a run's failure, None if there is none."""
    try:
        Simulation(seed, directory / str(seed), Counter()).run()
    except SimulationFailed as failure:
        return str(failure).splitlines()[0]
    return None
