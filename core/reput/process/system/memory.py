"""anonymous_memory: the private memory of a process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["anonymous_memory"]


def anonymous_memory(pid: int) -> int | None:
    """Return the anonymous resident memory of a process in bytes, or None if there is no such process.

    It includes pages shared with its parent since the fork.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None
