"""DeadLetters: the records that a dispatcher refused, with their bytes, in ``reput/dead_letters/NAME.jsonl``."""

from __future__ import annotations

from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from reput.store.json_lines import JsonLines

__all__ = ["DeadLetter", "DeadLetters"]


class DeadLetter(msgspec.Struct, frozen=True):
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


class DeadLetters:
    """The dead-letter file of one dispatcher. A record that comes again after a crash is not added a second time."""

    def __init__(self, store_directory: Path, name: str) -> None:
        self.lines = JsonLines(store_directory / "reput" / "dead_letters" / f"{name}.jsonl", DeadLetter)
        self.known: set[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> set[tuple[int, int]]:
        """Return which records are in the file: offset, and CRC-32 because a cut log uses offsets again."""
        if self.known is None:
            self.known = {(letter.commit_log_offset, crc32(letter.record)) for letter in self.lines.read()}
        return self.known

    def add(self, letter: DeadLetter) -> bool:
        """Keep *letter* durably; return whether it is new."""
        identity = (letter.commit_log_offset, crc32(letter.record))
        known = self.load()
        if identity in known:
            return False
        self.lines.append(letter)
        known.add(identity)
        return True
