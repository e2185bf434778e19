"""DeadLetters: the records that a dispatcher refused, with their bytes, in ``reput/dead_letters/NAME.jsonl``.

They can be replayed: an operator writes the wish ``NAME.replay``, and the dispatcher gets them again at its next start.

    NAME.replay      which letters are to come again
    NAME.replaying   they have been handed out; who finds it at a start knows that the attempt before ended in a crash

A wish is tried once, or a record that kills its dispatcher would do so at every start. What was taken in leaves the
file after the view was flushed: after a crash in between it may come twice, if it is asked for again.

A line that is no letter, because a disk or a person has changed it, stops nobody: it is told of, and stays where it is.
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
    """One refused record. *record* is all of it as it lies in the log, base64 in the file; *timestamp* is in ms."""

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
        """Offset and CRC-32, because a cut log uses offsets again."""
        return self.commit_log_offset, crc32(self.record)


class ReplayWish(msgspec.Struct, frozen=True):
    """The letters that are to come again."""

    letters: list[Identity]


class DeadLetters:
    """The dead-letter file of one dispatcher. A record that comes again after a crash is not added a second time.

    One process adds and replays, the dispatcher's; any may read, and wish for a replay.
    """

    def __init__(self, store_directory: Path, name: str) -> None:
        self.name = name
        folder = store_directory / "reput" / "dead_letters"
        self.lines = JsonLines(folder / f"{name}.jsonl", DeadLetter)
        self.wish = folder / f"{name}.replay"
        self.attempt = folder / f"{name}.replaying"
        self.known: set[Identity] | None = None
        # Letters that were rejected once more, while they are replayed.
        self.rejected_again: dict[Identity, DeadLetter] = {}

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> set[Identity]:
        """Return which records are in the file."""
        if self.known is None:
            self.known = {letter.identity for letter in self.read()}
        return self.known

    def read(self) -> Iterator[DeadLetter]:
        """Yield the letters that can be read, in the order in which they came."""
        return (line for line in self.lines.read_lines() if isinstance(line, DeadLetter))

    def require_whole(self) -> None:
        """Raise DamagedStore, which names the line, if one is no letter."""
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

    def wish_replay(self) -> list[DeadLetter]:
        """Have all letters that are there come again at the dispatcher's next start; return them."""
        letters = list(self.read())
        if letters:
            replace_durably(self.wish, msgspec.json.encode(ReplayWish([letter.identity for letter in letters])))
        return letters

    def replay_is_due(self) -> bool:
        """Whether a wish waits, or an attempt has not come to its end."""
        return self.wish.exists() or self.attempt.exists()

    def begin_replay(self) -> list[DeadLetter]:
        """Return the letters that are wished for, and remember that they were handed out.

        Raises:
            DamagedStore: the wish is not what was written. It is forgotten; no letter is.
        """
        try:
            wish = msgspec.json.decode(self.wish.read_bytes(), type=ReplayWish)
        except msgspec.DecodeError as error:
            self.wish.unlink()
            raise DamagedStore(
                f"the wish for a replay is not what was written, and is forgotten: path={self.wish} error={error}",
                f"Ask again: reput dispatcher dead-letters STORE {self.name} --replay",
            ) from None
        os.rename(self.wish, self.attempt)
        force_directory(self.attempt.parent)
        wanted = set(map(tuple, wish.letters))
        self.rejected_again = {}
        return [letter for letter in self.read() if letter.identity in wanted]

    def finish_replay(self, taken: Iterable[DeadLetter]) -> None:
        """Forget those of *taken* that were not rejected again; of the others the newer reason holds."""
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
        """Have the same letters come again later: nothing was changed by handing them out."""
        os.rename(self.attempt, self.wish)

    def give_up_replay(self) -> bool:
        """Forget an attempt; return whether there was one."""
        found = self.attempt.exists()
        self.attempt.unlink(missing_ok=True)
        return found
