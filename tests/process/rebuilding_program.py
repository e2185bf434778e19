"""A program that puts and rebuilds views until it is killed: ``rebuilding_program.py STORE``."""

from __future__ import annotations

import json
import sys

import reput


def main() -> None:
    """Put, print the position, and rebuild for ever."""
    store = reput.open(sys.argv[1], mapped_file_size_commit_log=1 << 20)
    while True:
        batch = [reput.Message("orders", b"body", keys=[f"key-{number}"]) for number in range(200)]
        print(json.dumps({"acknowledged": store.put_batch(batch)[-1].next_commit_log_offset}), flush=True)
        rows = store.rebuild("consume_queue", "index")
        print(json.dumps({"rebuilt": [row.view for row in rows]}), flush=True)


if __name__ == "__main__":
    main()
