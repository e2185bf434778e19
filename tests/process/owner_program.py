"""A program that opens a store and puts until it is killed: ``owner_program.py STORE PLUGIN_FOLDER DISPATCHER…``.

Each line on stdout is JSON: first the group, then after each batch the offset up to which puts were acknowledged.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Open the store, print the group, and put for ever."""
    store_directory, plugin_folder, *dispatchers = sys.argv[1:]
    sys.path.append(plugin_folder)
    import reput

    store = reput.open(store_directory, dispatchers=dispatchers)
    end = store.put_batch([reput.Message("orders", b"first")])[-1].next_commit_log_offset
    for name in dispatchers:
        store.wait_for(name, end, 60.0)
    rows = store.status().dispatchers
    supervisor = next(
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and b"supervisor" in (read(f"/proc/{pid}/cmdline")) and parent_of(pid) == os.getpid()
    )
    print(json.dumps({"supervisor": supervisor, "dispatchers": [row.pid for row in rows]}), flush=True)
    while True:
        results = store.put_batch([reput.Message("orders", b"body", keys=["k"])] * 50)
        print(json.dumps({"acknowledged": results[-1].next_commit_log_offset}), flush=True)


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def parent_of(pid: str) -> int:
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


if __name__ == "__main__":
    main()
