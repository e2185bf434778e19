"""Write a frozen store with the installed reput: ``python tests/versions/make_frozen_store.py 0.1-layout-1``."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import reput
from reput import Message

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1000,
}


def main(name: str) -> None:
    """Write 40 messages to two topics, in two openings, with a group that has consumed five of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        for begin in (0, 20):
            with reput.open(path, mode="inline", **SMALL) as store:
                for number in range(begin, begin + 20):
                    topic = ("orders", "parcels")[number >= 20]
                    store.put(Message(topic, b"body %d" % number, tags="red", keys=f"k{number}"))
                if not begin:
                    with store.consumer("billing", "orders") as consumer:
                        for _ in range(5):
                            consumer.ack(consumer.receive(60))
        with tarfile.open(Path(__file__).parent / "data" / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(path, "store")


if __name__ == "__main__":
    main(sys.argv[1])
