"""AuditLog: the actions in a console with their users, as lines of JSON."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from heapq import merge
from pathlib import Path

import msgspec

__all__ = ["AuditLine", "AuditLog"]

# What the page shows of actions, and of logins; the file has all.
SHOWN_MAX = 200

logger = logging.getLogger("reput.console")


class AuditLine(msgspec.Struct, frozen=True):
    """One action, or an attempt.

    Attributes:
        timestamp: ms since 1970.
        user: ``-`` on a console without accounts.
        outcome: ``begun``, ``done``, ``refused`` or ``failed``, with the reason.
    """

    timestamp: int
    user: str
    peer: str
    action: str
    outcome: str


class AuditLog:
    """Any thread may add. A line is written by one system call, so that several consoles may share a file."""

    def __init__(self, path: Path | None, *, keeps_logins: bool = True) -> None:
        """Add to the file at *path*; None: the lines go to the program's log alone.

        Args:
            keeps_logins: False: a login is not written to the file. The console changes no byte of a closed store.
        """
        self.path = path
        self.keeps_logins = keeps_logins
        self.lock = threading.Lock()
        # Apart, so that a stranger who tries passwords does not push the actions off the page.
        self.actions: deque[AuditLine] = deque(maxlen=SHOWN_MAX)
        self.logins: deque[AuditLine] = deque(maxlen=SHOWN_MAX)

    @property
    def shown(self) -> list[AuditLine]:
        """The last actions and logins, newest first."""
        with self.lock:
            return list(merge(self.actions, self.logins, key=lambda line: -line.timestamp))

    def add_login(self, user: str, peer: str, outcome: str) -> None:
        """Add a login, or an attempt."""
        line = AuditLine(time.time_ns() // 1_000_000, user, peer, "login", outcome)
        self.note(line, self.logins, is_kept=self.keeps_logins)

    def add_refused_login(self, peer: str) -> None:
        """Add an attempt with a wrong name or password.

        Not the name: it may be a password in the wrong field. Attempts of a name that waits are not looked at, and not
        added: a stranger could fill the disk with them.
        """
        self.add_login("-", peer, "refused: name or password is wrong")

    def add(self, user: str, peer: str, action: str, outcome: str) -> None:
        """Add one line.

        Raises:
            OSError: it cannot be written; then the action is not begun.
        """
        self.note(AuditLine(time.time_ns() // 1_000_000, user, peer, action, outcome), self.actions, is_kept=True)

    def note(self, line: AuditLine, shown: deque[AuditLine], *, is_kept: bool) -> None:
        """Add a line to the file if it *is_kept*, to what is *shown*, and to the program's log."""
        with self.lock:
            if self.path is not None and is_kept:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, msgspec.json.encode(line) + b"\n")
                finally:
                    os.close(descriptor)
            shown.appendleft(line)
        logger.info("user=%s peer=%s action=%s outcome=%s", line.user, line.peer, line.action, line.outcome)
