"""Accounts: the users of a console that listens beyond this machine."""

from __future__ import annotations

import hashlib
import hmac
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from reput.errors import ConfigError

__all__ = ["Accounts"]

PASSWORD_SIZE_MIN = 12
# Of one address; further attempts are refused until the oldest is so old.
FAILURES_MAX = 5
FAILURES_S = 60.0
ADDRESSES_MAX = 1000


class Accounts:
    """Names and passwords, one ``name:password`` a line in a file that only its owner may read. Any thread may ask."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, others may read it, or a line is no account.
        """
        self.monotonic = monotonic
        self.lock = threading.Lock()
        # By address, the times of its failures.
        self.failures: dict[str, list[float]] = {}
        self.digests: dict[str, bytes] = {}
        try:
            mode = path.stat().st_mode
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file of users cannot be read: path={path} error={error}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"others may read the file of users: path={path} mode={stat.S_IMODE(mode):o}",
                f"Keep it to yourself: chmod 600 {path}",
            )
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, password = line.partition(":")
            if not colon or not name.strip() or len(password) < PASSWORD_SIZE_MIN:
                # Not the line itself, which may be a password.
                raise ConfigError(
                    f"a line is no account: path={path} line={number}",
                    f"Write NAME:PASSWORD, with {PASSWORD_SIZE_MIN} characters or more.",
                )
            self.digests[name.strip()] = digest(password)
        if not self.digests:
            raise ConfigError(f"the file of users names none: path={path}", "Write NAME:PASSWORD.")

    def accepts(self, name: str, password: str) -> bool:
        """Return whether *name* may log in with *password*; takes the same time for a name that does not exist."""
        known = self.digests.get(name)
        given = digest(password)
        return hmac.compare_digest(given, known or b"\0" * len(given)) and known is not None

    def may_try(self, address: str) -> bool:
        """Return whether an address may try again: it has few recent failures."""
        with self.lock:
            return len(self.recent(address)) < FAILURES_MAX

    def failed(self, address: str) -> None:
        """Count a failure of an address."""
        with self.lock:
            if len(self.failures) >= ADDRESSES_MAX:
                self.failures.pop(next(iter(self.failures)))
            self.failures[address] = [*self.recent(address), self.monotonic()]

    def recent(self, address: str) -> list[float]:
        """Return the times of the failures that count."""
        after = self.monotonic() - FAILURES_S
        return [at for at in self.failures.get(address, ()) if at > after]


def digest(password: str) -> bytes:
    """Return what is compared: of one length, whatever the password's."""
    return hashlib.sha256(password.encode()).digest()
