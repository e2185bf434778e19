"""The golden sets: stores that real RocketMQ brokers wrote, with the brokers' answers.

``golden/data/README.md`` describes how they were made and what their files hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from archives import unpack_tar

__all__ = [
    "CLEAN_SETS",
    "PART_SETS",
    "copy_writable",
    "newest_of_each",
    "read_about",
    "read_lines",
    "some_of",
    "tree_digest",
    "unpack",
    "write_broker_properties",
]

DATA = Path(__file__).parent / "golden" / "data"

# One store each, shut down cleanly.
CLEAN_SETS = (
    "basic-4.9",
    "basic-5.3",
    "basic-5.5",
    "batch-4.9",
    "delay-retry-5.3",
    "direct-4.9",
    "direct-5.3",
    "direct-5.5",
    "ext-4.9",
    "lmq-5.3",
    "transaction-4.9",
    "transaction-5.5",
)
# Several stores each, in pairs XXXbefore and XXXafter.
PART_SETS = ("aged-4.9", "aged-5.3", "crash-5.3", "damaged-4.9")


def newest_of_each(names: Iterable[str]) -> list[Any]:
    """Return *names* as parameters: of the sets that differ by RocketMQ's version only, all but the newest are long."""
    names = list(names)
    newest = {name.rpartition("-")[0]: name for name in sorted(names)}
    return [pytest.param(name, marks=[] if name in newest.values() else [pytest.mark.long], id=name) for name in names]


def some_of(names: Iterable[str], *usual: str) -> list[Any]:
    """Return *names* as parameters: all but the *usual* ones are long."""
    return [pytest.param(name, marks=[] if name in usual else [pytest.mark.long], id=name) for name in names]


def unpack(name: str, target: Path) -> Path:
    """Unpack the set *name* below *target* with the file times that the broker left, and return its folder."""
    unpack_tar(DATA / f"{name}.tar.gz", target)
    folder = target / name
    about = read_about(folder)
    for part, described in about.get("parts", {"": about}).items():
        # RocketMQ 4.x answers by time from the modification times of its queue files.
        for path, facts in described["files"].items():
            time_ns = facts["mtimeMs"] * 1_000_000
            os.utime(folder / part / "store" / path, ns=(time_ns, time_ns))
    return folder


def copy_writable(source: Path, target: Path) -> Path:
    """Copy a folder with its file times; everything in the copy may be written, whatever *source* allows."""
    shutil.copytree(source, target)
    for directory, folders, files in os.walk(target):
        for name in (*folders, *files):
            path = os.path.join(directory, name)
            os.chmod(path, os.stat(path).st_mode | 0o200)
    os.chmod(target, os.stat(target).st_mode | 0o700)
    return target


def make_read_only(folder: Path) -> None:
    """Remove write permission from everything in *folder*; root is not affected."""
    for directory, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(directory, name)
            os.chmod(path, os.stat(path).st_mode & ~0o222)
    os.chmod(folder, os.stat(folder).st_mode & ~0o222)


def tree_digest(folder: Path) -> dict[str, str]:
    """Return path → digest of everything below *folder*, including directories and their names."""
    digest: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        digest[name] = "directory" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return digest


def read_about(folder: Path) -> dict[str, Any]:
    """Return the set's ``about.json``."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text("utf-8"))
    return about


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a ``.jsonl`` file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_broker_properties(folder: Path, target: Path) -> Path:
    """Write the broker settings of the set in *folder* to *target*, as the broker's own ``.properties`` file."""
    settings = read_about(folder)["brokerSettings"]
    target.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    return target
