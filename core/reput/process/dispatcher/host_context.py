"""HostContext: what the host gives a dispatcher; it implements `reput_hooks.DispatcherContext`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reput.process.dispatcher.commit_log_reader import CommitLogReader
from reput.process.frames.protocols import LoopCell
from reput.process.logs.log_pipe import as_utf8
from reput.process.views.dead_letters import DeadLetter, DeadLetters
from reput.process.views.view_folders import ViewFolders
from reput.settings import Settings
from reput_hooks import Counter, DispatchRequest, LogReader

__all__ = ["HostContext"]


class HostContext:
    """The context of one dispatcher; its attributes and methods are those of `DispatcherContext`."""

    def __init__(
        self,
        *,
        name: str,
        options: Any,
        settings: Settings,
        store_directory: Path,
        store_id: str,
        folders: ViewFolders,
        dead_letters: DeadLetters,
        cell: LoopCell,
        epoch: Callable[[], int],
        alive: Callable[[], None],
        rehearsal: bool = False,
    ) -> None:
        self.name = name
        self.directory = folders.directory
        self.options = options
        self.rehearsal = rehearsal
        self.settings: Mapping[str, Any] = msgspec.structs.asdict(settings)
        self.store_directory = store_directory
        self.store_id = store_id
        self._reader = CommitLogReader(store_directory)
        self.log: LogReader = self._reader
        self.logger = logging.getLogger(f"reput.dispatcher.{name}")
        self.folder = folders.folder
        self._cell = cell
        self._counters: dict[str, Counter] = {}
        self._dead_letters = dead_letters
        self._cell.set_rejected_count(len(self._dead_letters))
        self._epoch = epoch
        # Reports that a long piece of work is still running.
        self.alive = alive

    def counter(self, name: str) -> Counter:
        """Return the counter of that name in the dispatcher's cell."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._cell.counter(name)
        return counter

    def reject(self, request: DispatchRequest, reason: str) -> None:
        """Add one record durably to the dispatcher's dead-letter file."""
        letter = DeadLetter(
            timestamp=time.time_ns() // 1_000_000,
            epoch=self._epoch(),
            commit_log_offset=request.commit_log_offset,
            record_size=request.record_size,
            topic=request.topic,
            queue_id=request.queue_id,
            queue_offset=request.queue_offset,
            # The plugin may pass any object; a reason that cannot be written must not stop the dispatcher.
            reason=as_utf8(str(reason)),
            record=self._reader.read_bytes(request.commit_log_offset, request.record_size),
        )
        if self._dead_letters.add(letter):
            self._cell.set_rejected_count(len(self._dead_letters))
            self.logger.warning(
                "record rejected: commit_log_offset=%d topic=%s reason=%s",
                request.commit_log_offset,
                request.topic,
                letter.reason,
            )

    def close(self) -> None:
        """Release the log. Only the host calls this."""
        self._reader.close()
