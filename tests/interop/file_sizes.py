"""Sizes of files for stores that RocketMQ and reput pass to each other.

Small enough that every round crosses the ends of segments, queue files and index files.
"""

from __future__ import annotations

__all__ = ["FILE_SIZES"]

FILE_SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 100,
}
