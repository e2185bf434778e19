"""Accounts: the users of a console that listens beyond this machine, and the pauses after wrong passwords.

    NAME:scrypt$16384$8$5$SALT$KEY    a line of the file of users; salt and key in base64, the numbers are n, r and p

`reput password FILE NAME` writes such a line. The numbers are those that OWASP gives for 16 MiB of memory.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reput.errors import ConfigError

__all__ = ["PASSWORD_SIZE_MIN", "Accounts", "Attempt", "HashedPassword", "hashed", "parse_account"]

PASSWORD_SIZE_MIN = 12
KIND = "scrypt"
COST, BLOCK_SIZE, PARALLELISM = 1 << 14, 8, 5
SALT_SIZE = KEY_SIZE = 32
# What a line of the file may ask for.
MEMORY_MAX = 64 << 20
PARALLELISM_MAX = 16
# Wrong passwords of one name from one address until the first pause; it doubles with each further one.
FREE_FAILURES = 5
PAUSE_S = 2.0
PAUSE_MAX_S = 300.0
# Failures that are so old are forgotten.
FORGET_S = 3600.0
# To push a name out of the memory, a stranger must let the console compute so many keys: longer than a pause.
REMEMBERED_MAX = 10_000
# Of longer names, so many characters are remembered.
NAME_SIZE_MAX = 255
# One key is computed at a time, for its memory; so many may wait, each on a thread that pages need as well.
WAITING_MAX = 8


class HashedPassword(msgspec.Struct, frozen=True):
    """A password as the file has it."""

    cost: int
    block_size: int
    parallelism: int
    salt: bytes
    key: bytes

    def key_of(self, password: str) -> bytes:
        """Return the key of *password* under the same salt; it takes a while, and memory."""
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=self.cost,
            r=self.block_size,
            p=self.parallelism,
            maxmem=MEMORY_MAX + (1 << 20),
            dklen=len(self.key),
        )

    def line(self, name: str) -> str:
        """Return the line of the file of users."""
        salt, key = (base64.b64encode(part).decode() for part in (self.salt, self.key))
        return f"{name}:{KIND}${self.cost}${self.block_size}${self.parallelism}${salt}${key}"


class Attempt(msgspec.Struct, frozen=True):
    """What became of an attempt to log in.

    Attributes:
        wait_s: seconds until the next attempt is looked at; 0.0: none.
    """

    accepted: bool
    wait_s: float = 0.0


class Failures:
    """Failed attempts of one name from one address."""

    __slots__ = ("at", "count")

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until the next attempt is looked at."""
        if self.count < FREE_FAILURES:
            return 0.0
        pause = min(PAUSE_S * 2.0 ** min(self.count - FREE_FAILURES, 20), PAUSE_MAX_S)
        return max(self.at + pause - now, 0.0)


class Accounts:
    """Names and salted hashes of passwords, from a file that only its owner may read. Any thread may ask.

    After wrong passwords, the next attempts of this name from this address wait, longer each time. Other names from the
    same address, such as that of a proxy, and the same name from other addresses do not.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, others may read it, or a line is no account.
        """
        self.monotonic = monotonic
        self.lock = threading.Lock()
        self.computing = threading.Lock()
        self.waiting = 0
        self.failures: dict[tuple[str, str], Failures] = {}
        # A scraper sends its password every few seconds: under a key of this process, what was accepted is known fast.
        self.process_key = secrets.token_bytes(32)
        self.accepted: dict[str, bytes] = {}
        self.passwords = read_accounts(path)
        first = next(iter(self.passwords.values()))
        self.nobody = HashedPassword(
            first.cost, first.block_size, first.parallelism, secrets.token_bytes(SALT_SIZE), bytes(len(first.key))
        )

    def attempt(self, name: str, password: str, address: str) -> Attempt:
        """Return whether *name* from *address* is let in; takes the same time for a name that does not exist."""
        now = self.monotonic()
        # Names that strangers make up must not fill the memory.
        source = name[:NAME_SIZE_MAX], address
        with self.lock:
            failures = self.failures.get(source)
            if failures is None or now - failures.at > FORGET_S:
                failures = Failures()
            wait = failures.wait(now)
            if wait > 0.0:
                return Attempt(False, wait)
            if self.waiting >= WAITING_MAX and not self.was_accepted(name, password):
                return Attempt(False, 1.0)
            self.waiting += 1
            # Counted before the password is looked at: attempts at the same time must not all be the first one. The
            # newest stand last. Those that were refused above are not remembered: they would push out names that wait.
            failures.count += 1
            failures.at = now
            self.failures.pop(source, None)
            self.failures[source] = failures
            if len(self.failures) > REMEMBERED_MAX:
                del self.failures[next(iter(self.failures))]
        try:
            is_right = self.is_right(name, password)
        finally:
            with self.lock:
                self.waiting -= 1
        if is_right:
            with self.lock:
                self.failures.pop(source, None)
        return Attempt(is_right)

    def was_accepted(self, name: str, password: str) -> bool:
        """Return whether this name was let in with this password before; takes no time."""
        return hmac.compare_digest(self.accepted.get(name, b""), self.fast_key(password))

    def fast_key(self, password: str) -> bytes:
        """Return what is kept of a password that was accepted."""
        return hashlib.blake2b(password.encode(), key=self.process_key).digest()

    def is_right(self, name: str, password: str) -> bool:
        """Return whether a password is that of a name."""
        known = self.passwords.get(name)
        if self.was_accepted(name, password):
            return True
        stored = known or self.nobody
        with self.computing:
            is_equal = hmac.compare_digest(stored.key_of(password), stored.key)
        if not is_equal or known is None:
            return False
        self.accepted[name] = self.fast_key(password)
        return True


def hashed(password: str, *, cost: int = COST, parallelism: int = PARALLELISM) -> HashedPassword:
    """Return a password as the file has it, under a new salt.

    Raises:
        ConfigError: it is too short.
    """
    if len(password) < PASSWORD_SIZE_MIN:
        raise ConfigError(
            f"the password is too short: characters={len(password)}", f"Give {PASSWORD_SIZE_MIN} characters or more."
        )
    empty = HashedPassword(cost, BLOCK_SIZE, parallelism, secrets.token_bytes(SALT_SIZE), bytes(KEY_SIZE))
    return msgspec.structs.replace(empty, key=empty.key_of(password))


def parse_account(line: str) -> tuple[str, HashedPassword | None] | None:
    """Return name and password of a line; no password: it has another form. None: the line is no account."""
    name, colon, rest = line.partition(":")
    if not colon or not name.strip() or not rest:
        return None
    kind, *parts = rest.strip().split("$")
    if kind != KIND or len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts[:3]):
        return name.strip(), None
    cost, block_size, parallelism = map(int, parts[:3])
    try:
        salt, key = (base64.b64decode(part, validate=True) for part in parts[3:])
    except (binascii.Error, ValueError):
        return name.strip(), None
    is_possible = cost > 1 and not cost & (cost - 1) and 0 < 128 * cost * block_size <= MEMORY_MAX
    if not is_possible or not 0 < parallelism <= PARALLELISM_MAX or not salt or len(key) < 16:
        return name.strip(), None
    return name.strip(), HashedPassword(cost, block_size, parallelism, salt, key)


def read_accounts(path: Path) -> dict[str, HashedPassword]:
    """Return the accounts of a file.

    Raises:
        ConfigError: it cannot be read, others may read it, or a line is no account.
    """
    found: dict[str, HashedPassword] = {}
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            mode = os.fstat(descriptor).st_mode
            text = file.read()
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
        account = parse_account(line)
        # Not the line itself, which may be a password.
        if account is None:
            raise ConfigError(
                f"a line is no account: path={path} line={number}", f"Remove it, and write: reput password {path} NAME"
            )
        name, password = account
        if password is None:
            raise ConfigError(
                f"an account has no hash of a password, but plain text: path={path} line={number} name={name}",
                f"Replace it by a salted hash: reput password {path} {name}",
            )
        found[name] = password
    if not found:
        raise ConfigError(f"the file of users names none: path={path}", f"Add one: reput password {path} NAME")
    return found
