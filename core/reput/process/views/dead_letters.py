"""DeadLetters: the records that a dispatcher refused, with their bytes, in ``reput/dead_letters/NAME.jsonl``.

An operator can replay them: `reput` writes the request ``NAME.replay``, and the dispatcher gets the letters again at
its next start.

    NAME.replay      the letters to replay
    NAME.replaying   they have been handed out; if a start finds this file, the previous attempt ended in a crash

A replay is tried once; otherwise a record that kills its dispatcher would do so at every start. Accepted letters leave
the file after the view was flushed: after a crash in between, another replay may deliver them twice.

A line that is no letter, because a disk or a person has changed it, is reported and kept; it stops no dispatcher.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from reput.errors import DamagedStore
from reput.process.views.view_folders import force_directory
from reput.store.disk.json_lines import DamagedLine, JsonLines, seal_line
from reput_hooks import replace_durably

__all__ = ["DeadLetter", "DeadLetters"]

Identity = tuple[int, int]


class DeadLetter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One refused record. *record* is the whole record as stored in the log, base64 in the file; *timestamp* is ms."""

    timestamp: int
    epoch: int
    commit_log_offset: int
    record_size: int
    topic: str
    queue_id: int
    queue_offset: int
    reason: str
    record: bytes

    @property
    def identity(self) -> Identity:
        """Offset and CRC-32, because a truncated log reuses offsets."""
        return self.commit_log_offset, crc32(self.record)


class ReplayRequest(msgspec.Struct, frozen=True):
    """The letters to replay."""

    letters: list[Identity]


class DeadLetters:
    """The dead-letter file of one dispatcher. A record rejected again after a crash is not added a second time.

    Only the dispatcher's process adds and replays; any process may read, and request a replay.
    """

    def __init__(self, store_directory: Path, name: str) -> None:
        self.name = name
        folder = store_directory / "reput" / "dead_letters"
        self.lines = JsonLines(folder / f"{name}.jsonl", DeadLetter)
        self.requested = folder / f"{name}.replay"
        self.attempt = folder / f"{name}.replaying"
        self.known: set[Identity] | None = None
        # Letters that were rejected again during a replay.
        self.rejected_again: dict[Identity, DeadLetter] = {}

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> set[Identity]:
        """Return which records are in the file."""
        if self.known is None:
            self.known = {letter.identity for letter in self.read()}
        return self.known

    def read(self) -> Iterator[DeadLetter]:
        """Yield the readable letters, in the order in which they were added."""
        return (line for line in self.lines.read_lines() if isinstance(line, DeadLetter))

    def require_whole(self) -> None:
        """Raise DamagedStore, which names the line, if a line is no letter."""
        for _ in self.lines.read():
            pass

    def damaged_lines(self) -> list[DamagedLine]:
        """Return the lines that are no letters."""
        return [line for line in self.lines.read_lines() if isinstance(line, DamagedLine)]

    def add(self, letter: DeadLetter) -> bool:
        """Keep *letter* durably; return whether it is new."""
        identity = letter.identity
        known = self.load()
        if identity in known:
            self.rejected_again[identity] = letter
            return False
        self.lines.append(letter)
        known.add(identity)
        return True

    # Replaying.

    def request_replay(self) -> list[DeadLetter]:
        """Request a replay of all present letters at the dispatcher's next start; return them."""
        letters = list(self.read())
        if letters:
            replace_durably(self.requested, msgspec.json.encode(ReplayRequest([letter.identity for letter in letters])))
        return letters

    def replay_is_due(self) -> bool:
        """Whether a replay is requested, or an attempt has not finished."""
        return self.requested.exists() or self.attempt.exists()

    def begin_replay(self) -> list[DeadLetter]:
        """Return the requested letters, and record that they were handed out.

        Raises:
            DamagedStore: the request is not what was written. It is dropped; no letter is lost.
        """
        try:
            request = msgspec.json.decode(self.requested.read_bytes(), type=ReplayRequest)
        except msgspec.DecodeError as error:
            self.requested.unlink()
            raise DamagedStore(
                f"a stored replay request is damaged and is dropped: path={self.requested} error={error}",
                f"Ask again: reput dispatcher dead-letters STORE {self.name} --replay",
            ) from None
        os.rename(self.requested, self.attempt)
        force_directory(self.attempt.parent)
        wanted = set(map(tuple, request.letters))
        self.rejected_again = {}
        return [letter for letter in self.read() if letter.identity in wanted]

    def finish_replay(self, taken: Iterable[DeadLetter]) -> None:
        """Remove the letters of *taken* that were not rejected again; the others get the newer reason."""
        gone = {letter.identity for letter in taken} - self.rejected_again.keys()
        kept = []
        for line in self.lines.read_lines():
            if isinstance(line, DamagedLine):
                kept.append(line.data + b"\n")
            elif line.identity not in gone:
                kept.append(seal_line(self.rejected_again.get(line.identity, line)))
        replace_durably(self.lines.path, b"".join(kept))
        self.known = None
        self.give_up_replay()

    def postpone_replay(self) -> None:
        """Request the same letters again for later."""
        os.rename(self.attempt, self.requested)

    def give_up_replay(self) -> bool:
        """Forget an attempt; return whether there was one."""
        found = self.attempt.exists()
        self.attempt.unlink(missing_ok=True)
        return found
