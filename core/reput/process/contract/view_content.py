"""read_view: the content of a view's folders, in a form that allows comparing two views and naming their difference.

A JSON file is represented by its value, a JSON-lines file by the list of its values, a SQLite database by the content
of its tables, any other file by its bytes.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reput.process.views.view_folders import VIEW_VERSION

__all__ = ["difference", "read_view"]

SQLITE_HEAD = b"SQLite format 3\0"
# Temporary files of a database.
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
SHOWN_SIZE_MAX = 200


def read_view(folders: Sequence[Path]) -> dict[str, object]:
    """Return the content of every file by its path, without drafts that `replace_durably` left.

    If the view lies in folders of the store's root, only those count: its own folder then holds only auxiliary files.
    """
    return {
        str(path.relative_to(folder.parent)): file_content(path)
        for folder in folders[1:] or folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".draft", *SQLITE_SUFFIXES)) and path.name != VIEW_VERSION
    }


def file_content(path: Path) -> object:
    """Return the content of one file."""
    data = path.read_bytes()
    if data.startswith(SQLITE_HEAD):
        with contextlib.closing(sqlite3.connect(path)) as database:
            return database_content(database)
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(data)
        if path.suffix == ".jsonl":
            return [msgspec.json.decode(line) for line in data.splitlines()]
    except msgspec.DecodeError:
        # The content does not match the suffix; compare bytes instead.
        pass
    return data


def database_content(database: sqlite3.Connection) -> dict[str, object]:
    """Return the SQL statement of each table and index, and the ordered rows of each table.

    A virtual table, such as one for full-text search, keeps its data in *shadow* tables, whose bytes depend on how
    it was built. It is represented by its rows, and an FTS5 table also by the positions of its words.
    """
    schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY rowid").fetchall()
    kinds = {name: kind for place, name, kind, *_ in database.execute("PRAGMA table_list") if place == "main"}
    content: dict[str, object] = {}
    for kind, name, statement in schema:
        if kinds.get(name) == "shadow":
            continue
        content[f"{kind} {name}"] = statement
        if kind == "table":
            content[f"rows of {name}"] = database.execute(f"SELECT * FROM {quoted(name)}").fetchall()
        if kinds.get(name) == "virtual" and "using fts5" in statement.lower():
            database.execute(f"CREATE VIRTUAL TABLE temp.{quoted(f'words of {name}')} USING {words_of(name)}")
            words = database.execute(f"SELECT * FROM temp.{quoted(f'words of {name}')}")
            content[f"words of {name}"] = sorted(words, key=repr)
    return content


def quoted(name: str) -> str:
    """Return *name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def words_of(name: str) -> str:
    """Return the module of a virtual table that lists each word of the FTS5 table *name*, with row and position."""
    return f"fts5vocab('main', {quoted(name)}, 'instance')"


def difference(found: object, expected: object) -> str:
    """Return the first difference between *found* and *expected* in one line, "" if they are equal."""
    if found == expected:
        return ""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if key not in found:
                return f"{key} is missing, expected {shown(expected[key])}"
            if key not in expected:
                return f"{key} should not exist: {shown(found[key])}"
            if found[key] != expected[key]:
                return f"{key}: {difference(found[key], expected[key])}"
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        index = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
        return f"[{index}]: {difference(found[index], expected[index])}"
    return f"found {shown(found)} expected {shown(expected)}"


def shown(value: object) -> str:
    """Return the beginning of a value, as text."""
    text = repr(value)
    return text if len(text) <= SHOWN_SIZE_MAX else f"{text[:SHOWN_SIZE_MAX]}... ({len(text)} characters)"
