"""The class-data archive: used if it exists, created if requested, and never an obstacle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput_plugins.spark_export.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """Return the archive of a Java that only prints its version."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 17 >&2\n")
    java.chmod(0o755)
    return ClassArchive(java, tmp_path / "spark", "4.3.0")


def test_without_an_archive_nothing_is_asked_of_the_jvm(archive: ClassArchive):
    """A short export does not pay for later starts."""
    assert archive.options(make=False) == ""


def test_an_archive_is_moved_into_place_whole(archive: ClassArchive):
    """An archive written by the JVM at its end speeds up the next start."""
    assert archive.options(make=True) == f"-XX:ArchiveClassesAtExit={archive.draft}"
    archive.draft.write_bytes(b"classes")
    archive.keep()
    assert archive.path.read_bytes() == b"classes"
    assert archive.options(make=True) == f"-Xshare:auto -XX:SharedArchiveFile={archive.path}"


def test_a_jvm_that_wrote_none_leaves_none(archive: ClassArchive):
    """A killed JVM writes no archive; the next one tries again."""
    archive.options(make=True)
    archive.keep()
    assert not archive.path.exists()


def test_a_cache_that_cannot_be_written_is_done_without(archive: ClassArchive, tmp_path: Path):
    """Then each start takes its full time."""
    (tmp_path / "cache").write_bytes(b"a file where the directory should be")
    assert archive.options(make=True) == ""


def test_drafts_of_killed_programs_are_removed(archive: ClassArchive):
    """Each has up to 150 MiB. One that is still being written stays, and so does the archive of another Java."""
    other = archive.path.with_name("spark-4.2.0-another.jsa")
    old, new = other.with_suffix(".1.draft"), archive.path.with_suffix(".2.draft")
    other.parent.mkdir(parents=True)
    for path in (other, old, new):
        path.write_bytes(b"classes")
    for path in (other, old):
        os.utime(path, (1, 1))
    archive.options(make=False)
    assert sorted(other.parent.iterdir()) == sorted([other, new])
