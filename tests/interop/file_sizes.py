"""Sizes of files in which RocketMQ and reput hand a store to each other.

Small enough that every round crosses the end of segments, of queue files and of index files.
"""

from __future__ import annotations

__all__ = ["FILE_SIZES"]

FILE_SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 100,
}
