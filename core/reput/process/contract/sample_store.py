"""SampleStore: a small store on disk for the contract, and variants of it whose log has a different history.

Segments have 16 KiB and other files are small, too, so that a few dozen messages cross their boundaries. After writing,
the store is closed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from reput.settings import Settings
from reput.store.log.log_scan import LogScan, ScannedRange
from reput.store.message_store import MessageStore
from reput.store.record.delay_level import DelayHistory
from reput.store.record.message import Message
from reput.store.recovery.log_end import find_log_end
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_store_id
from reput_hooks.sample import Sample

__all__ = ["AWKWARD_SAMPLES", "SAMPLES", "SEGMENT_SIZE", "SampleStore", "sample_settings"]

SEGMENT_SIZE = 16 << 10
CONSUME_QUEUE_FILE_SIZE = 20 * 64
EXT_FILE_SIZE = 4 << 10
INDEX_SLOT_COUNT = 100
INDEX_ENTRY_COUNT = 400
ORDER = b'{"order": %d, "customer": "customer %d", "amount": %d.50, "note": "%s"}'


def make_samples() -> Iterator[Sample]:
    """Yield orders and payments, each with a JSON body, a unique key and a shared key."""
    for number in range(60):
        yield Sample(
            ("orders", "payments", "audit")[number % 3],
            ORDER % (number, number % 7, 10 + number, b"x" * (number * 37 % 600)),
            tags=("paid", "open", None)[number % 4 % 3],
            keys=(f"order-{number}", f"customer-{number % 7}"),
            properties={"region": ("north", "south")[number % 2]},
            queue_id=number % 2,
        )


SAMPLES = tuple(make_samples())
# Each of these is legal, and each has broken a dispatcher before.
AWKWARD_SAMPLES = (
    Sample("awkward", b""),
    Sample("awkward", b"\x00"),
    Sample("awkward", b"\xff\xfe no UTF-8 \x80"),
    Sample("awkward", b"{"),
    Sample("awkward", b"[1, 2, 3]"),
    Sample("awkward", b"null"),
    Sample("awkward", "Grüße, 你好, 🙂".encode()),
    Sample("awkward", b"x" * 12_000),
    Sample("awkward", b"body", keys=("one", "one", "two")),
    Sample("awkward", b"body", tags="", properties={"empty": ""}),
    Sample("awkward", b"body", tags="标签", keys=("ключ",), properties={"имя": "値 \n\t\"'\\"}),
    Sample("awkward", b"body", properties={f"p{number}": "v" * 40 for number in range(100)}),
    Sample("awkward", b"later", delay_level=3),
    Sample("%RETRY%group", b"again"),
    Sample("t" * 127, b"body", queue_id=7),
)


def sample_settings(settings: Settings) -> Settings:
    """Return *settings* for a sample store."""
    return msgspec.structs.replace(
        settings,
        mapped_file_size_commit_log=SEGMENT_SIZE,
        mapped_file_size_consume_queue=CONSUME_QUEUE_FILE_SIZE,
        mapped_file_size_consume_queue_ext=EXT_FILE_SIZE,
        max_hash_slot_num=INDEX_SLOT_COUNT,
        max_index_num=INDEX_ENTRY_COUNT,
    )


class SampleStore:
    """A written store, now closed.

    Attributes:
        bounds: commit-log offsets before the first record and after each record, ascending.
    """

    def __init__(self, directory: Path, settings: Settings, *, needs_properties: bool) -> None:
        self.directory = directory
        self.settings = settings
        self.needs_properties = needs_properties
        self.store_id = read_store_id(directory)
        self.bounds: list[int] = []
        self.list_records()

    @classmethod
    def write(
        cls, directory: Path, samples: Sequence[Sample], settings: Settings, *, needs_properties: bool
    ) -> SampleStore:
        """Create a store with *samples* in *directory*."""
        put_samples(directory, samples, settings)
        return cls(directory, settings, needs_properties=needs_properties)

    def followed_by(self, directory: Path, samples: Sequence[Sample]) -> SampleStore:
        """Return a copy in *directory* with *samples* appended."""
        shutil.copytree(self.directory, directory)
        put_samples(directory, samples, self.settings)
        return SampleStore(directory, self.settings, needs_properties=self.needs_properties)

    def parting(self, directory: Path, samples: Sequence[Sample]) -> SampleStore:
        """Return a copy like `followed_by`, in which a new epoch of the log begins at the current end.

        A view that took in a different continuation of this store must undo it.
        """
        shutil.copytree(self.directory, directory)
        epochs = read_epochs(directory, self.store_id).begin(self.end, 0)
        parted = msgspec.structs.replace(epochs, clean_end=self.end)
        (directory / "reput" / "epochs").write_bytes(parted.seal())
        put_samples(directory, samples, self.settings)
        return SampleStore(directory, self.settings, needs_properties=self.needs_properties)

    def trimmed(self, directory: Path, commit_log_offset_min: int) -> SampleStore:
        """Return a copy without the segments below *commit_log_offset_min*, which is a segment boundary."""
        shutil.copytree(self.directory, directory)
        for path in (directory / "commitlog").iterdir():
            if int(path.name) < commit_log_offset_min:
                path.unlink()
        return SampleStore(directory, self.settings, needs_properties=self.needs_properties)

    def with_unknown_history(self, directory: Path, commit_log_offset_min: int) -> SampleStore:
        """Return a copy with unknown history below *commit_log_offset_min*, which is a segment boundary.

        This happens when RocketMQ wrote the store for longer than it keeps its files.
        """
        shutil.copytree(self.directory, directory)
        epochs = read_epochs(directory, self.store_id).begin(commit_log_offset_min, 0, located=False)
        (directory / "reput" / "epochs").write_bytes(epochs.seal())
        return SampleStore(directory, self.settings, needs_properties=self.needs_properties)

    @property
    def begin(self) -> int:
        """Offset at which the log begins."""
        return self.bounds[0]

    @property
    def end(self) -> int:
        """Offset at which the log ends."""
        return self.bounds[-1]

    @property
    def epoch(self) -> int:
        """Number of the log's history."""
        return read_epochs(self.directory, self.store_id).epoch

    @property
    def segment_begins(self) -> list[int]:
        """Offsets of all segments except the first."""
        return sorted({bound // SEGMENT_SIZE * SEGMENT_SIZE for bound in self.bounds[1:]} - {self.begin})

    def open_scan(self) -> LogScan:
        """Return a reader of the log; the caller closes it."""
        return LogScan(
            self.directory,
            needs_properties=self.needs_properties,
            delay_history=DelayHistory([(0, self.settings.message_delay_level)]),
        )

    def list_records(self) -> None:
        """Find the bounds."""
        scan = self.open_scan()
        end = find_log_end(self.directory, scan.segments)
        try:
            at = scan.offset_min
            self.bounds.append(at)
            while at < end:
                columns, following = scan.locate(at, end)
                self.bounds += (at + columns.position + columns.header["record_size"]).tolist()
                at = following
        finally:
            scan.close()

    def ranges(self, begin: int, end: int) -> Iterable[ScannedRange]:
        """Yield the requests of [*begin*, *end*), one range per segment."""
        scan = self.open_scan()
        try:
            while begin < end:
                scanned = scan.scan(begin, end)
                yield scanned
                begin = scanned.end
        finally:
            scan.close()


def put_samples(directory: Path, samples: Sequence[Sample], settings: Settings) -> None:
    """Put *samples* into the store in *directory*, which is created if absent, and close it."""
    store = MessageStore(directory, settings)
    try:
        store.put_batch(
            Message(
                sample.topic,
                sample.body,
                tags=sample.tags,
                keys=sample.keys or None,
                properties=sample.properties or None,
                queue_id=sample.queue_id,
                delay_level=sample.delay_level,
            )
            for sample in samples
        )
    finally:
        # The close counts as clean, so the next opening does not recover; no view that is missing here is RocketMQ's.
        store.close(views_complete=True)
