"""Jobs: actions that take a while, each on a thread, with its progress and outcome."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from reput.console.audit_log import AuditLog
from reput.errors import ReputError

__all__ = ["Job", "Jobs", "Work"]

# Outcomes that are remembered.
KEPT_MAX = 100

Progress = Callable[[int, int], None]
Work = Callable[[Progress], str]


class Job:
    """One action.

    Attributes:
        state: ``runs``, ``done`` or ``failed``; *outcome* says with which result, or why.
        total: of what *done* counts; 0: not known.
    """

    def __init__(self, number: int, action: str, user: str, peer: str) -> None:
        self.number = number
        self.action = action
        self.user = user
        self.peer = peer
        self.begun = time.time_ns() // 1_000_000
        self.state = "runs"
        self.outcome = ""
        self.done = self.total = 0

    @property
    def progress(self) -> str:
        """How far it is, in words; empty: nothing is counted, or it has ended."""
        if self.state != "runs" or not (self.done or self.total):
            return ""
        return f"{self.done} of {self.total}" if self.total else str(self.done)

    @property
    def percent(self) -> int | None:
        """How far it is; None: that is not known."""
        return min(100 * self.done // self.total, 100) if self.total > 0 else None


class Jobs:
    """Any thread may call."""

    def __init__(self, audit: AuditLog) -> None:
        self.audit = audit
        self.numbers = itertools.count(1)
        self.jobs: dict[int, Job] = {}
        self.lock = threading.Lock()

    def begin(self, action: str, user: str, peer: str, work: Work) -> Job:
        """Do *work* on a thread; it returns its outcome and may tell its progress.

        If the same action runs already, that one is returned: a form that was sent twice must not redrive twice.

        Raises:
            OSError: the audit log cannot be written; nothing is done.
        """
        with self.lock:
            for job in self.jobs.values():
                if job.action == action and job.state == "runs":
                    return job
            self.audit.add(user, peer, action, "begun")
            job = Job(next(self.numbers), action, user, peer)
            self.jobs[job.number] = job
            for number in list(self.jobs)[: max(len(self.jobs) - KEPT_MAX, 0)]:
                if self.jobs[number].state != "runs":
                    del self.jobs[number]
        threading.Thread(target=self.run, args=(job, work), name="reput-console-job", daemon=True).start()
        return job

    def run(self, job: Job, work: Work) -> None:
        """Do the work of a job, and note its outcome."""

        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total

        try:
            job.outcome = work(progress)
            job.state = "done"
        except (ReputError, OSError) as error:
            job.outcome = str(error)
            job.state = "failed"
        except BaseException as error:
            job.outcome = f"{type(error).__name__}: {error}"
            job.state = "failed"
            raise
        finally:
            self.audit.add(job.user, job.peer, job.action, f"{job.state}: {job.outcome}")

    def newest(self) -> list[Job]:
        """Return the remembered jobs, newest first."""
        with self.lock:
            return list(reversed(self.jobs.values()))
