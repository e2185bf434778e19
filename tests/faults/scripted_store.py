"""ScriptedStore: the simulated machine of `simulation`, executing a fixed script, with one fault at one place.

All promises of a simulation are checked here, too: after each opening the log is what was put, no acknowledged message
is missing, and at rest the views agree with the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from faulty_files import Killed
from reput.store.state.store_lock import StoreLock
from simulation.expected_log import Violation
from simulation.simulation import Member, Simulation

__all__ = ["AsyncStore", "PooledStore", "ScriptedStore", "SyncStore", "at_every_call"]

CALLS_MAX = 1000

Step = Callable[["ScriptedStore"], object]


class ScriptedStore(Simulation):
    """A store in *directory*, not open yet."""

    recovery_kill_share = 0.0
    ext_share = 0.0
    # None: chosen by the seed.
    flush_disk_type: str | None = None
    transient_store_pool_enable = False

    def __init__(self, directory: Path, seed: int = 1) -> None:
        super().__init__(seed, directory, Counter())
        self.settings = msgspec.structs.replace(
            self.settings,
            flush_disk_type=self.flush_disk_type or self.settings.flush_disk_type,
            transient_store_pool_enable=self.transient_store_pool_enable,
        )

    def put_many(self, count: int) -> None:
        for _ in range(count):
            self.put()

    def member(self, name: str) -> Member:
        """Return one of the dispatchers."""
        return next(member for member in self.members if member.name == name)

    def work_all(self, count: int) -> None:
        """Let each dispatcher do *count* pieces of work."""
        for member in self.members:
            self.work(member, count)
            self.clock.advance(1.0)

    def kill_and_open(self) -> None:
        """End the writer's process with its dispatchers, and start another one, which finds everything in the files."""
        self.abandon()
        committed = self.store.committed
        before = sum(record.end <= committed for record in self.expected.records)
        self.open()
        if len(self.expected.records) < before:
            raise Violation(f"a kill has taken records: before={before} after={len(self.expected.records)}")

    def cut_power_and_open(self) -> None:
        self.abandon()
        self.disk.cut()
        self.clock.boot += 1
        self.open()

    def settle(self) -> None:
        """Put more, let everything come to rest, compare it with what was put, close, and look for leftovers."""
        self.put_many(3)
        self.verify()
        self.close()
        drafts = [str(path) for path in self.directory.rglob("*.draft")]
        if drafts or (self.directory / "abort").exists():
            raise Violation(f"files are left over: drafts={drafts}")
        StoreLock(self.directory).close()

    def killed_in(self, act: Step, calls: int) -> bool:
        """Do *act*, whose writer is killed after *calls* file calls; return whether it was killed."""
        self.writer_files.calls_left = calls
        try:
            act(self)
        except Killed:
            return True
        self.writer_files.calls_left = None
        return False


class AsyncStore(ScriptedStore):
    """A store whose files have every message as soon as it was put."""

    flush_disk_type = "ASYNC_FLUSH"


class SyncStore(ScriptedStore):
    """A store whose files have messages once they were forced."""

    flush_disk_type = "SYNC_FLUSH"


class PooledStore(ScriptedStore):
    """A store with a transient pool, whose files have messages once they were committed."""

    flush_disk_type = "ASYNC_FLUSH"
    transient_store_pool_enable = True

    def flush(self) -> None:
        """Run the committer's thread, then the flusher's."""
        assert self.store.durability.commit_service is not None
        self.store.durability.commit_service.do_round()
        super().flush()


def at_every_call(
    root: Path,
    prepare: Step,
    killed: Callable[[ScriptedStore, int], bool],
    after: Step,
    kind: type[ScriptedStore] = ScriptedStore,
) -> int:
    """Do *prepare*, then *killed* with a process that lives for a number of calls, then *after*, and settle.

    With no call, with one, and so on, until *killed* reports that it survived.

    Returns:
        The number of calls in which it was killed.
    """
    for calls in range(CALLS_MAX):
        store = kind(root / str(calls), seed=calls)
        try:
            prepare(store)
            died = killed(store, calls)
            if died:
                after(store)
            store.settle()
        finally:
            store.abandon()
        if not died:
            return calls
    raise AssertionError(f"there is no end of calls: calls={CALLS_MAX}")
