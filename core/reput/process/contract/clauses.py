"""The clauses of a dispatcher's contract: one function per promise, from basic to advanced.

A clause gets the dispatcher and an empty directory. It returns None if the promise is kept, and a sentence if it does
not apply to this dispatcher. It raises AssertionError if the promise is broken; any other exception of the plugin
also breaks it. The first line of a clause's docstring is the promise, in the words of docs/dispatchers.md.
"""

from __future__ import annotations

import functools
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from reput.process.contract.child import run_in_child
from reput.process.contract.sample_store import AWKWARD_SAMPLES, SampleStore
from reput.process.contract.trial import Subject, Trial
from reput.process.contract.view_content import difference
from reput.process.contract.watched import CRASHED, CallLog
from reput.process.dispatcher.batch_bound import BatchSize
from reput.process.dispatcher.cursor_checks import StartRefused
from reput.process.owner.offline_rebuild import rebuild
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions

__all__ = ["CLAUSES", "Clause"]

Clause = Callable[[Subject, Path], str | None]
CLAUSES: dict[str, Clause] = {}

CRASH_COUNT_MAX = 100
READ_FAILURE_COUNT_MAX = 40
CRASH_BATCHES = (5, 1, 9, 3)
BESIDE_SHOWN_MAX = 10
# Records of a large backlog: more than fit into a first batch.
FAR_BEHIND = 1_000


def clause(function: Clause) -> Clause:
    """Add *function* to the contract."""
    CLAUSES[function.__name__] = function
    return function


# Shared by the clauses.


def make_store(subject: Subject, directory: Path, count: int | None = None) -> SampleStore:
    """Return a store with the first *count* samples in it."""
    return SampleStore.write(
        directory / "store",
        subject.samples[:count],
        subject.settings,
        needs_properties=subject.description.needs_properties,
    )


def over_segments(function: Callable[[Subject, SampleStore, Path], None]) -> Clause:
    """Create the store for a clause that trims the log, and skip the clause if all samples lie in one segment."""

    @functools.wraps(function)
    def hold(subject: Subject, directory: Path) -> str | None:
        store = make_store(subject, directory)
        if not store.segment_begins:
            return "the samples fill less than one segment of the log"
        function(subject, store, directory)
        return None

    return hold


def built_at_once(subject: Subject, store: SampleStore, root: Path) -> object:
    """Return the view of *store*, built from the log in one life without any incident."""
    trial = Trial(subject, store, root)
    trial.begin(len(store.bounds) - 1)
    trial.end()
    return trial.view()


def require_equal(found: object, expected: object, when: str) -> None:
    """Raise AssertionError unless two views are equal."""
    assert found == expected, f"the view differs {when}: {difference(found, expected)}"


def files_beside(trial: Trial) -> dict[str, bytes]:
    """Return the files under the trial's root and in the store that it reads, by path, except those of the view and
    those in which the host keeps the view's dead letters and gaps."""
    name, own = trial.subject.name, trial.folders()
    hosts = [trial.root / "reput" / folder / f"{name}.jsonl" for folder in ("dead_letters", "gaps")]
    return {
        f"{path.relative_to(place)}{where}": path.read_bytes() if path.is_file() else b""
        for place, where in ((trial.root, ""), (trial.store.directory, " (in the store that it reads)"))
        for path in sorted(place.rglob("*"))
        if not path.is_dir() and path not in hosts and not any(path.is_relative_to(folder) for folder in own)
    }


def places(store: SampleStore) -> list[int]:
    """Return some record numbers at which something may happen: early, in the middle, late."""
    count = len(store.bounds) - 1
    return sorted({1, count // 3, count // 2, count * 2 // 3, count - 1} - {0})


def evenly(count: int, count_max: int) -> list[int]:
    """Return up to *count_max* of the numbers below *count*, evenly spaced, including the first and the last."""
    if count <= count_max:
        return list(range(count))
    return sorted({round(index * (count - 1) / (count_max - 1)) for index in range(count_max)})


# The clauses.


@clause
def starts_with_nothing(subject: Subject, directory: Path) -> str | None:
    """With an empty folder, `start` returns None: the view begins with the log."""
    store = make_store(subject, directory)
    trial = Trial(subject, store, directory / "root")
    trial.begin(0)
    assert trial.calls.started_at == [None], f"start returned a cursor at {trial.calls.started_at[0]}, on an empty view"
    trial.end()
    return None


@clause
def takes_in_the_log(subject: Subject, directory: Path) -> str | None:
    """`dispatch` brings the view up to the batch's end; `flush` returns its durable cursor, never an older one."""
    store = make_store(subject, directory)
    trial = Trial(subject, store, directory / "root")
    trial.begin(0)
    for _ in itertools.takewhile(lambda _: trial.appended < len(store.bounds) - 1, itertools.count()):
        trial.take(7)
        trial.flush()
    trial.end()
    durable = trial.calls.durable
    assert durable == sorted(durable), f"flush returned an older cursor than before: {durable}"
    known = {*store.bounds, *store.segment_begins}
    strange = [offset for offset in durable if offset not in known]
    assert not strange, f"flush returned a cursor that is not at a record: commit_log_offset={strange[0]}"
    if not durable:
        return "flush never returned a cursor: each start replays the whole log, and views are not compared"
    assert durable[-1] == store.end, f"the last flush returned {durable[-1]} after dispatching up to {store.end}"
    return None


@clause
def any_batches(subject: Subject, directory: Path) -> str | None:
    """The view is the same for any division into batches, and for batches from the ring or from the log."""
    store = make_store(subject, directory)
    expected = built_at_once(subject, store, directory / "at-once")
    chance = random.Random(1)
    for name, sizes in (
        ("of one record", itertools.repeat(1)),
        ("of seven records", itertools.repeat(7)),
        ("of any size", iter(lambda: chance.randrange(1, 12), None)),
    ):
        trial = Trial(subject, store, directory / name)
        trial.begin(0)
        trial.take_all(sizes)
        trial.end()
        require_equal(trial.view(), expected, f"if batches are {name}")
    return None


@clause
def catches_up(subject: Subject, directory: Path) -> str | None:
    """With a large backlog, it takes in batches of its declared size within the time limit, and smaller ones too."""
    samples = list(itertools.islice(itertools.cycle(subject.samples), FAR_BEHIND))
    store = SampleStore.write(
        directory / "store", samples, subject.settings, needs_properties=subject.description.needs_properties
    )
    end = len(store.bounds) - 1
    time_max = subject.settings.dispatcher_dispatch_time_max / 1000
    views = []
    for name, first_batch in (("at once", BatchSize(FAR_BEHIND, store.end)), ("after a kill", BatchSize(100, 10_000))):
        trial = Trial(subject, store, directory / name)
        trial.begin(end, first_batch=first_batch)
        trial.end()
        begin, _, count = max(trial.calls.batches, key=lambda batch: batch[2])
        assert trial.calls.seconds_max < time_max, (
            f"a batch took longer than its time limit: seconds={trial.calls.seconds_max:.1f} time_max={time_max} "
            f"records={count} commit_log_offset={begin}; declare batch_record_count_max, or call context.alive()"
        )
        views.append(trial.view())
    require_equal(views[1], views[0], "if it catches up in smaller batches")
    return None


@clause
def goes_on_where_it_stopped(subject: Subject, directory: Path) -> str | None:
    """Paused and resumed at any place, any number of times, the view misses no record and has none twice."""
    store = make_store(subject, directory)
    expected = built_at_once(subject, store, directory / "at-once")
    trial = Trial(subject, store, directory / "root")
    while trial.appended < len(store.bounds) - 1:
        trial.begin()
        trial.take(6)
        trial.take(3)
        trial.end()
        # Once more, with nothing new.
        trial.begin()
        trial.end()
    require_equal(trial.view(), expected, "after pauses")
    started = [offset for offset in trial.calls.started_at if offset is not None]
    assert started == sorted(started), f"start returned an older cursor than before: {started}"
    return None


@clause
def at_least_once(subject: Subject, directory: Path) -> str | None:
    """After a crash, records after the durable cursor come again, and leave no trace of having come twice."""
    store = make_store(subject, directory)
    expected = built_at_once(subject, store, directory / "at-once")
    for flushed, lost in ((0, 10), (10, 10), (10, len(store.bounds)), (len(store.bounds) - 1, 0)):
        trial = Trial(subject, store, directory / f"{flushed}-{lost}")

        def dies(say: Callable[[str], None], trial: Trial = trial, lost: int = lost) -> None:
            trial.take_all([1, lost - 1] if lost else ())

        for _ in range(2):
            trial.begin(flushed)
            trial.flush()
            child = run_in_child(dies)
            assert child.status == 0, "\n".join(child.lines)
            trial.abandon()
        trial.begin(len(store.bounds) - 1)
        trial.end()
        require_equal(trial.view(), expected, f"after crashes with {flushed} flushed records")
    return None


@clause
def flush_forces_to_disk(subject: Subject, directory: Path) -> str | None:
    """A cursor that `flush` returned survives a power cut: everything written before was forced to disk."""
    store = make_store(subject, directory)
    trial = Trial(subject, store, directory / "root")
    trial.begin(0)
    while trial.appended < len(store.bounds) - 1:
        trial.take(20)
        trial.flush()
    trial.end()
    assert not trial.calls.unforced, (
        f"flush returned {trial.calls.unforced[0]} after writes, but neither fsync nor fdatasync nor a "
        "database's commit was called (replace_durably does it for a small file)"
    )
    return None


@clause
def crash_at_every_call(subject: Subject, directory: Path) -> str | None:
    """Killed before any call to it, and before any call it makes to files or a database, it recovers by itself."""
    store = make_store(subject, directory, 24)
    expected = built_at_once(subject, store, directory / "at-once")
    end = len(store.bounds) - 1

    def life(root: Path, calls: CallLog) -> None:
        trial = Trial(subject, store, root, calls)
        trial.begin(0)
        for size in CRASH_BATCHES:
            trial.take(size)
            trial.flush()
        trial.take_all()
        trial.end()

    def counted(say: Callable[[str], None]) -> None:
        calls = CallLog()
        life(directory / "counted", calls)
        say(str(calls.count))

    child = run_in_child(counted)
    assert child.status == 0, "\n".join(child.lines)
    for crash_at in evenly(int(child.lines[0]), CRASH_COUNT_MAX):
        root = directory / f"crash-{crash_at}"

        def dies(say: Callable[[str], None], root: Path = root, crash_at: int = crash_at) -> None:
            life(root, CallLog(crash_at, on_durable=lambda offset: say(str(offset))))

        child = run_in_child(dies)
        assert child.status in (0, CRASHED), "\n".join(child.lines)
        durable = int(child.lines[-1]) if child.lines else 0
        trial = Trial(subject, store, root)
        where = f"after a crash before call {crash_at}"
        try:
            trial.begin(end)
            trial.end()
        except Exception as error:
            raise AssertionError(f"it does not start {where}: {type(error).__name__}: {error}") from error
        started = trial.calls.started_at[0] or 0
        assert started >= durable, f"start returned {started} {where}, though flush had returned {durable}"
        require_equal(trial.view(), expected, where)
        shutil.rmtree(root)
    return None


@clause
def retries_after_failures(subject: Subject, directory: Path) -> str | None:
    """`RetryLater` means that nothing was changed; after any other exception the dispatcher restarts and continues."""
    store = make_store(subject, directory)
    trial = Trial(subject, store, directory / "at-once")
    trial.begin(0)
    trial.take_all(itertools.repeat(8))
    trial.end()
    expected = trial.view()
    if not trial.calls.read_count:
        return "it reads no records and raised no RetryLater" if not trial.retry_count else None
    for failing in evenly(trial.calls.read_count, READ_FAILURE_COUNT_MAX):
        trial = Trial(subject, store, directory / f"failing-{failing}", CallLog(fail_read_at=failing + 1))
        trial.begin(0)
        while trial.appended < len(store.bounds) - 1:
            try:
                trial.take(8)
            except OSError:
                trial.abandon()
                trial.begin()
        trial.end()
        require_equal(trial.view(), expected, f"after reading {failing + 1} of the log had failed")
    return None


@clause
def takes_in_or_rejects_any_record(subject: Subject, directory: Path) -> str | None:
    """A record that it cannot take in is rejected once, and does not stop those after it."""
    samples = [*subject.samples[:10], *AWKWARD_SAMPLES, *subject.samples[10:20]]
    store = SampleStore.write(
        directory / "store",
        samples,
        subject.settings,
        needs_properties=subject.description.needs_properties,
    )
    trial = Trial(subject, store, directory / "root")
    trial.begin(0)
    while trial.appended < len(store.bounds) - 1:
        try:
            trial.take(1)
        except Exception as error:
            sample = samples[trial.appended - 1]
            raise AssertionError(
                f"dispatch raised {type(error).__name__}: {error} at a record with topic={sample.topic} "
                f"body={sample.body[:40]!r}; context.reject would keep it for later"
            ) from error
    trial.end()
    expected, rejected = trial.view(), trial.rejected()
    trial = Trial(subject, store, directory / "again")

    def dies(say: Callable[[str], None]) -> None:
        trial.begin(len(store.bounds) - 1)

    child = run_in_child(dies)
    assert child.status == 0, "\n".join(child.lines)
    trial.begin(len(store.bounds) - 1)
    trial.end()
    require_equal(trial.view(), expected, "after a crash")
    assert trial.rejected() == rejected, f"a later run rejected other records: {trial.rejected()} first={rejected}"
    return None


@clause
def truncates(subject: Subject, directory: Path) -> str | None:
    """If the log's history was cut before the cursor, the view undoes the records after the cut, or is rebuilt."""
    samples = list(subject.samples)
    for place in (1, len(samples) // 2, len(samples) - 1):
        here = directory / str(place)
        shared = make_store(subject, here, place)
        store = shared.followed_by(here / "this", samples[place:])
        other = shared.parting(here / "other", [*reversed(samples[place:]), *samples[:3]])
        expected = built_at_once(subject, other, here / "at-once")
        trial = Trial(subject, store, here / "root")
        trial.begin(0)
        trial.take_all(itertools.repeat(9))
        trial.end()
        trial = Trial(subject, other, here / "root")
        try:
            trial.begin(place)
        except StartRefused as error:
            if subject.view_elsewhere:
                return f"it undoes nothing, and stops until an operator decides: {error}"
            raise
        trial.take_all(itertools.repeat(9))
        trial.end()
        require_equal(trial.view(), expected, f"after the log was cut after record {place}")
    return None


@clause
@over_segments
def truncates_no_further_than_the_log(subject: Subject, store: SampleStore, directory: Path) -> None:
    """If the log does not know its older history, the view keeps what lies below that point, or is rebuilt."""
    minimum = store.segment_begins[0]
    count = len(store.bounds) - 1
    trial = Trial(subject, store, directory / "root")
    trial.begin(count)
    trial.end()
    unknown = store.with_unknown_history(directory / "unknown", minimum)
    kept = Trial(subject, unknown, directory / "kept")
    kept.begin(count)
    kept.expire(minimum)
    kept.end()
    trimmed = unknown.trimmed(directory / "trimmed", minimum)
    anew = built_at_once(subject, trimmed, directory / "anew")
    trial = Trial(subject, trimmed, directory / "root")
    trial.begin(len(trimmed.bounds) - 1)
    trial.end()
    if trial.view() != anew:
        require_equal(trial.view(), kept.view(), f"after the log's history below {minimum} became unknown")


@clause
@over_segments
def expires(subject: Subject, store: SampleStore, directory: Path) -> None:
    """When the log is trimmed at its beginning, the view continues, and is the same after the next start."""
    minimum = store.segment_begins[0]
    count = len(store.bounds) - 1
    trial = Trial(subject, store, directory / "root")
    trial.begin(count - 5)
    trial.expire(minimum)
    trial.take(2)
    trial.flush()
    trial.end()
    trimmed = store.trimmed(directory / "trimmed", minimum)
    trial = Trial(subject, trimmed, directory / "root")
    trial.commit_log_offset_min = minimum
    trial.begin(len(trimmed.bounds) - 1)
    trial.end()
    once = trial.view()
    trial.begin()
    trial.end()
    require_equal(trial.view(), once, "after another start on a trimmed log")


@clause
@over_segments
def goes_on_behind_a_gap(subject: Subject, store: SampleStore, directory: Path) -> None:
    """If retention removed records before it took them in, it continues with the first existing record."""
    minimum = store.segment_begins[-1]
    trial = Trial(subject, store, directory / "root")
    trial.begin(3)
    trial.end()
    trimmed = store.trimmed(directory / "trimmed", minimum)
    trial = Trial(subject, trimmed, directory / "root")
    trial.begin(len(trimmed.bounds) - 1)
    assert trial.calls.batches[0][0] == minimum, f"the first batch began at {trial.calls.batches[0][0]}, not {minimum}"
    trial.end()
    once = trial.view()
    trial.begin()
    trial.end()
    require_equal(trial.view(), once, "after another start beyond the gap")


@clause
def deletes_topics(subject: Subject, directory: Path) -> str | None:
    """A topic's deletion comes at its place in the log, also in a later rebuild; unknown topics do no harm."""
    store = make_store(subject, directory)
    topics = list(dict.fromkeys(sample.topic for sample in subject.samples))
    deletions = TopicDeletions(store.directory)
    wanted = dict(zip(places(store)[1:], [topics[0], "never-was", topics[-1]], strict=False))
    for place, topic in wanted.items():
        deletions.add(TopicDeletion(0, store.bounds[place], topic))
    expected = built_at_once(subject, store, directory / "at-once")
    trial = Trial(subject, store, directory / "root")
    trial.begin(0)
    for place, topic in wanted.items():
        trial.take(place - trial.appended)
        trial.delete_topic(topic)
        trial.flush()
    trial.take_all()
    trial.end()
    require_equal(trial.view(), expected, "if topics are deleted while it runs")
    return None


@clause
def is_built_again(subject: Subject, directory: Path) -> str | None:
    """With an emptied folder it starts from nothing, and builds the same view again."""
    if subject.view_elsewhere:
        return "its view lies elsewhere, and only an operator may rebuild it"
    store = make_store(subject, directory)
    expected = built_at_once(subject, store, directory / "at-once")
    trial = Trial(subject, store, directory / "root")
    trial.begin(len(store.bounds) // 2)
    trial.rebuild()
    trial.take_all()
    trial.flush()
    trial.rebuild()
    trial.end()
    require_equal(trial.view(), expected, "after a rebuild")
    return None


@clause
def keeps_to_its_folders(subject: Subject, directory: Path) -> str | None:
    """It writes only to its own folder and its declared folders, and leaves other files alone."""
    store = make_store(subject, directory)
    topic = subject.samples[0].topic
    trial = Trial(subject, store, directory / "root")
    before = files_beside(trial)
    trial.begin(5)
    trial.take(len(store.bounds) // 2)
    trial.flush()
    trial.delete_topic(topic)
    trial.expire(store.begin)
    trial.take_all()
    trial.end()
    trial.begin()
    if not subject.view_elsewhere:
        trial.rebuild()
    trial.end()
    after = files_beside(trial)
    beside = [
        f"{path} was {'removed' if path not in after else 'changed' if path in before else 'written'}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    assert not beside, f"there are {len(beside)} files outside its folders that it touched: " + ", ".join(
        beside[:BESIDE_SHOWN_MAX]
    )
    return None


@clause
def runs_in_a_process(subject: Subject, directory: Path) -> str | None:
    """In its own process, started and fed by the supervisor, it builds the same view."""
    store = make_store(subject, directory)
    expected = built_at_once(subject, store, directory / "at-once")
    rows = list(rebuild(store.directory, [subject.name], directory / "target", store.settings, force=True))
    assert [row.view for row in rows] == [subject.name]
    found = Trial(subject, store, directory / "target").view()
    require_equal(found, expected, "if it is built in a process")
    return None
