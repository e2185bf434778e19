"""The processes that a process has started, as the system lists them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["descendants"]


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below *pid*, with their command lines."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(path.name)] = f"{parent} " + (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    below: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, text in found.items():
            if text.split(" ", 1)[0] == str(parent) and child not in below:
                below[child] = text.split(" ", 1)[1]
                waiting.append(child)
    return below
