"""The content of a view, in a form in which equal views compare equal."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from reput.process.contract.view_content import difference, read_view

WORDS = "CREATE VIRTUAL TABLE words USING fts5(body{})"


def search_index(folder, batches, options=""):
    """Create a full-text index in which each of *batches* was one transaction."""
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / "words.db")) as database:
        database.execute(WORDS.format(options))
        rowid = 0
        for batch in batches:
            for body in batch:
                rowid += 1
                database.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (rowid, body))
            database.commit()
    return {str(name).partition("/")[2]: content for name, content in read_view([folder]).items()}


@pytest.mark.parametrize("options", ["", ", content=''", ", detail=none"])
def test_a_text_search_index_is_compared_by_what_it_finds(tmp_path, options):
    """The division into transactions changes the bytes of its shadow tables, but not the content."""
    bodies = [f"order {number} of two shirts" for number in range(40)]
    at_once = search_index(tmp_path / "at-once", [bodies], options)
    in_pieces = search_index(tmp_path / "in-pieces", [[body] for body in bodies], options)
    assert (tmp_path / "at-once" / "words.db").read_bytes() != (tmp_path / "in-pieces" / "words.db").read_bytes()
    assert difference(in_pieces, at_once) == ""
    missing = search_index(tmp_path / "missing", [bodies[:-1], ["order 39 of two hats"]], options)
    assert "words" in difference(missing, at_once)


def test_a_database_is_compared_by_its_tables_and_indexes(tmp_path):
    """The difference names the table."""
    views = []
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        with contextlib.closing(sqlite3.connect(tmp_path / name / "view.db")) as database:
            database.executescript('CREATE TABLE "odd ""name" (x, y); CREATE INDEX by_x ON "odd ""name" (x);')
            database.execute('INSERT INTO "odd ""name" VALUES (?, ?)', (value, "words"))
            database.commit()
        views.append(next(iter(read_view([tmp_path / name]).values())))
    assert difference(*views) == "rows of odd \"name: [0]: found (1, 'words') expected (2, 'words')"
    assert "index by_x" in views[0]
