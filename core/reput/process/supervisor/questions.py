"""Questions: asks each plugin for its declarations, in a separate process with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from reput.process.plugin.describe import Answer, DescribeProcess, Question
from reput.process.system.reactor import Reactor

__all__ = ["Questions"]

Done = Callable[[Answer], None]


class Questions:
    """The unanswered questions of one supervisor.

    Args:
        path: further entries of `sys.path` for the processes that import plugins.
        time_max_ms: time limit of one answer.
    """

    def __init__(self, reactor: Reactor, path: Sequence[str], time_max_ms: int) -> None:
        self.reactor = reactor
        self.path = path
        self.time_max_ms = time_max_ms
        # By the descriptor of the answer: several questions may be about one plugin.
        self.asked: dict[int, tuple[DescribeProcess, Done, float]] = {}

    def ask(self, question: Question, done: Done) -> None:
        """Ask a plugin for its declarations, and whether it accepts the options.

        Calls *done* with the answer, possibly at once; the dispatcher may have changed in between.
        """
        process = DescribeProcess(question, self.path)
        if process.answer is not None:
            done(process.answer)
            return
        self.asked[process.descriptor] = (process, done, time.monotonic() + self.time_max_ms / 1000)
        self.reactor.watch(process.descriptor, partial(self.on_readable, process.descriptor))

    def on_readable(self, descriptor: int, reason: str = "") -> None:
        """Read an answer; with *reason*, end the process instead, and give *reason* as its answer."""
        if descriptor not in self.asked:
            # Handling an earlier answer has ended the group.
            return
        process, done, _ = self.asked[descriptor]
        if reason:
            self.reactor.unwatch(descriptor)
            process.end(reason)
        elif process.receive():
            self.reactor.unwatch(descriptor)
        if process.answer is not None:
            del self.asked[descriptor]
            done(process.answer)

    def deadlines(self) -> list[float]:
        """Return the ends of the questions' time limits, monotonic seconds."""
        return [deadline for _, _, deadline in self.asked.values()]

    def end_overdue(self, now: float) -> None:
        """End the processes that have not answered in time."""
        for descriptor in [descriptor for descriptor, (_, _, deadline) in self.asked.items() if now > deadline]:
            self.on_readable(descriptor, f"start_time_max_ms={self.time_max_ms}")

    def end_all(self) -> None:
        """End all processes; their answers are dropped."""
        for process, _, _ in self.asked.values():
            self.reactor.unwatch(process.descriptor)
            process.end("the group ends")
        self.asked.clear()
