"""RocketMQ 5's data in RocksDB, which reput does not read; a database is recognised by its file ``CURRENT``.

    consumequeue/, consumequeue_rocksdb/   consume queues, with storeType=defaultRocksDB
    rocksdbstore/                          from 5.4.0 on always there; timers, half messages, index entries if asked for
    config/NAME/                           topics, groups, offsets, with storeType=defaultRocksDB

Source: RocketMQ store, StorePathConfigHelper and MessageRocksDBStorage; RocketMQ broker, RocksDBConfigManager.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.errors import StoreError
from reput.store.queue.consume_queue_builder import queue_directories

__all__ = ["refuse_queues_in_rocksdb", "rocksdb_notes"]

CURRENT = "CURRENT"


def queues_in_rocksdb(store_directory: Path) -> Path | None:
    """Return where RocketMQ keeps consume queues in RocksDB, None if it does not, or has them as files, too."""
    for name in ("consumequeue", "consumequeue_rocksdb"):
        folder = store_directory / name
        if (folder / CURRENT).is_file():
            has_files = next(queue_directories(store_directory / "consumequeue"), None) is not None
            return None if has_files else folder
    return None


def refuse_queues_in_rocksdb(store_directory: Path) -> None:
    """Refuse a store whose consume queues are in RocksDB alone.

    Otherwise each of its topics would look like a deleted one.

    Raises:
        StoreError: the consume queues are in RocksDB alone.
    """
    folder = queues_in_rocksdb(store_directory)
    if folder is not None:
        raise StoreError(
            f"RocketMQ keeps the consume queues of this store in RocksDB, which reput does not read: path={folder}",
            "Let RocketMQ build them as files (storeType=default), or read the log: `reput dump`, `reput export`.",
        )


def rocksdb_notes(store_directory: Path) -> Iterator[str]:
    """Yield a sentence for each thing that RocketMQ keeps in RocksDB."""
    folder = queues_in_rocksdb(store_directory)
    if folder is not None:
        yield f"RocketMQ keeps consume queues in RocksDB, which reput does not read: path={folder}"
    database = store_directory / "rocksdbstore"
    if any(path.stat().st_size for pattern in ("*.sst", "*.log") for path in database.glob(pattern)):
        yield (
            "RocketMQ keeps timers, half messages or index entries in RocksDB, which reput neither reads nor changes: "
            f"path={database}"
        )
    for path in sorted((store_directory / "config").glob(f"*/{CURRENT}")):
        yield f"RocketMQ keeps configuration in RocksDB, which reput does not read: path={path.parent}"
