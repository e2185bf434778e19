"""The clock of a simulated machine, and its threads, which never run by themselves."""

from __future__ import annotations

from collections.abc import Callable

from reput.store.disk.files import Clock
from reput.store.service.threads import Threads

__all__ = ["HeldThread", "HeldThreads", "PromptThreads", "SimulatedClock"]

START_MS = 1_700_000_000_000


class SimulatedClock(Clock):
    """Moves only on request. The wall clock may jump, the monotonic one may not.

    Attributes:
        boot: number of the machine's start.
    """

    def __init__(self) -> None:
        self.ms = START_MS
        self.seconds = 0.0
        self.boot = 1

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds

    def boot_id(self) -> str:
        return f"start {self.boot}"

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.ms += round(seconds * 1000)


class HeldThread:
    """A thread that runs when it is joined; by then it has been asked to stop, and only ends in good order."""

    def __init__(self, target: Callable[[], None]) -> None:
        self.target: Callable[[], None] | None = target

    def join(self, timeout: float | None = None) -> None:
        target, self.target = self.target, None
        if target is not None:
            target()

    def is_alive(self) -> bool:
        return self.target is not None


class HeldThreads(Threads):
    """The simulation does the work of the threads when it chooses."""

    def start(
        self, name: str, target: Callable[[], None], end_waits: Callable[[str], None] | None = None
    ) -> HeldThread:
        return HeldThread(target)


class PromptThreads(Threads):
    """The work of a thread is done before its starter continues, so that every run is the same."""

    def start(
        self, name: str, target: Callable[[], None], end_waits: Callable[[str], None] | None = None
    ) -> HeldThread:
        target()
        return HeldThread(lambda: None)
