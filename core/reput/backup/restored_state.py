"""Configuration, offsets and reput's own files of a restored store, made to fit where its log ends."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path, PurePosixPath

from reput.backup.layout import BackupManifest, damaged_backup
from reput.backup.restored_log import VerifiedLog
from reput.backup.stored import read_file
from reput.backup.target import BackupTarget
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager, LmqConsumerOffsetManager
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.disk.files import Files
from reput.store.disk.json_lines import seal_line
from reput.store.disk.sealed_file import seal
from reput.store.log.segments import Segments
from reput.store.queue.queue_offsets import QueueOffsets, QueueOffsetsSnapshot, read_queue_offsets
from reput.store.record.delay_level import SCHEDULE_TOPIC
from reput.store.recovery.damage_list import DamageList, read_damage
from reput.store.recovery.recreated_queues import (
    RECREATED_QUEUES,
    RecreatedQueue,
    read_recreated_queues,
    seal_recreated_queues,
)
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.epochs import Epochs, make_mark
from reput.store.state.store_lock import StoreLock
from reput.store.state.topic_deletions import TopicDeletion, TopicDeletions

__all__ = ["deletions_and_recreations", "fit_to_log", "lower_offsets", "write_files"]

DELETIONS = "topic_deletions.jsonl"


def write_files(target: BackupTarget, manifest: BackupManifest, store_directory: Path) -> None:
    """Write the small files of a backup into a store that is being restored.

    Raises:
        DamagedStore: one is absent, or not what was written.
    """
    files = Files()
    for name, stored in manifest.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise damaged_backup(name, "reason='the path leads out of the store'")
        files.make_directory(store_directory / path.parent)
        files.replace(store_directory / path, read_file(target, stored))


def deletions_and_recreations(store_directory: Path, log_end: int) -> list[TopicDeletion | RecreatedQueue]:
    """Return the topics that were deleted and the queues that began anew up to *log_end*, and let the files say so."""
    files = Files()
    kept = [part for part in TopicDeletions(store_directory).following(0) if part.commit_log_offset <= log_end]
    if (store_directory / "reput" / DELETIONS).exists():
        files.replace(store_directory / "reput" / DELETIONS, b"".join(map(seal_line, kept)))
    recreated = [part for part in read_recreated_queues(store_directory) if part.commit_log_offset <= log_end]
    if (store_directory / "reput" / RECREATED_QUEUES).exists():
        files.replace(store_directory / "reput" / RECREATED_QUEUES, seal_recreated_queues(recreated))
    parts: list[TopicDeletion | RecreatedQueue] = [*kept, *recreated]
    return sorted(parts, key=attrgetter("commit_log_offset"))


def fit_to_log(
    store_directory: Path,
    segments: Segments,
    manifest: BackupManifest,
    newest: BackupManifest,
    log_end: int,
    verified: VerifiedLog,
    now_ms: int,
) -> int:
    """Write the state of a store that was closed when its log ended at *log_end*.

    The log begins a new epoch there, or where it diverges from the newest backup before: views that know more, such
    as a lake, learn from it what they have to take back.

    Returns:
        How many offsets of groups lay behind the ends of their queues, and were set to them.
    """
    own = store_directory / "reput"
    files = Files()
    snapshot = read_queue_offsets(store_directory)
    queues = QueueOffsets(verified.queues)
    for topic, table in (snapshot.queues if snapshot is not None else {}).items():
        for queue_id, next_offset in table.items():
            # A queue without a record in the log goes on where it was.
            if queue_id not in queues.queues.get(topic, {}):
                queues.raise_to(topic, queue_id, next_offset)
    later = [epoch.start_offset for epoch in newest.history[len(manifest.history) :]]
    epochs = Epochs(manifest.store_id, newest.history).begin(min([log_end, *later]), now_ms)
    epochs = epochs.with_mark(make_mark(segments, log_end), clean=True)
    files.replace(own / "epochs", epochs.seal())
    closed = QueueOffsetsSnapshot(epochs.epoch, log_end, verified.records, verified.store_timestamp, queues.snapshot())
    files.replace(own / "queue_offsets", closed.seal())
    # An opening does not read a log that was closed, so it would not notice what is known here.
    known = [found for found in read_damage(store_directory).ranges if found.end <= log_end]
    places = {(found.begin, found.end) for found in known}
    known += [found for found in verified.unreadable if (found.begin, found.end) not in places]
    files.replace(own / "damage", seal(DamageList(sorted(known, key=attrgetter("begin")))))
    cursors = dict.fromkeys(read_dispatcher_cursors(store_directory))
    files.replace(own / "dispatcher_cursors", seal(cursors))
    lock = StoreLock(store_directory)
    try:
        lock.claim()
    finally:
        lock.close()
    return lower_offsets(store_directory, queues)


def lower_offsets(store_directory: Path, queues: QueueOffsets) -> int:
    """Set the offsets that lie behind the ends of their queues to these ends; return how many there were.

    Otherwise a group would miss the messages that get these queue offsets next.
    """
    lowered = 0
    for manager in (ConsumerOffsetManager(store_directory), LmqConsumerOffsetManager(store_directory)):
        manager.load()
        for group, topics in manager.by_group().items():
            for topic, table in topics.items():
                for queue_id, queue_offset in table.items():
                    end = queues.next_offset(topic, queue_id)
                    if queue_offset > end:
                        manager.commit_offset(group, topic, queue_id, end)
                        lowered += 1
        if manager.path.exists() or manager.backup_path.exists():
            manager.persist()
    delays = DelayOffsetManager(store_directory)
    delays.load()
    for level, queue_offset in list(delays.offset_table.items()):
        delays.update_offset(level, min(queue_offset, queues.next_offset(SCHEDULE_TOPIC, level - 1)))
    if delays.path.exists() or delays.backup_path.exists():
        delays.persist()
    return lowered
