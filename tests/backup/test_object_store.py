"""Backups in an object store: the same as in a directory, with a local S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backing_up import NO_VIEWS, put, writing
from local_s3 import local_s3
from reput.backup.backup import backup_store
from reput.backup.layout import IDENTITY
from reput.backup.open_target import open_target
from reput.backup.restore import RestoreRequest, list_backups, restore_store
from reput.backup.retention import Keep
from reput.errors import ConfigError, StoreError
from small_store import records, small_settings

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Return the settings for an S3 with a bucket named ``backups``."""
    with local_s3("backups") as found:
        yield {name.lower(): value for name, value in found.items()}


def test_backups_in_an_object_store_are_those_of_a_directory(tmp_path, options):
    """The first backup, a later one, the oldest's removal and a restore work with an S3's objects."""
    store, address = tmp_path / "store", "s3://backups/one"
    for count in (20, 5, 3):
        with writing(store) as writer:
            put(writer, count)
            report = backup_store(store, open_target(address, options), small_settings(), keep=Keep(count=2))
    target = open_target(address, options)
    assert report.removed == 1
    assert [manifest.number for manifest in list_backups(target)] == [2, 3]
    restore_store(target, tmp_path / "restored", RestoreRequest(address), assignments=NO_VIEWS)
    assert records(tmp_path / "restored") == records(store)


def test_two_backups_at_the_same_time_do_not_replace_each_other(tmp_path, options):
    """An object store has no lock: the second manifest of the same number is refused."""
    target = open_target("s3://backups/two", options)
    assert target.is_empty()
    assert target.create("backups/0000000001.json", b"first")
    assert not target.create("backups/0000000001.json", b"second")
    assert target.read("backups/0000000001.json") == b"first"


def test_errors_of_an_object_store_are_one_sentence(tmp_path, options):
    """A missing bucket and a wrong option are named; keys are not shown."""
    with pytest.raises(StoreError, match="object store refuses: target=s3://nothere/x") as caught:
        open_target("s3://nothere/x", options).create(IDENTITY, b"")
    assert "not shown" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be used"):
        open_target("s3://backups/x", {"no_such_option": "1"})
    with pytest.raises(ConfigError, match="a directory has no storage options"):
        open_target(str(tmp_path), {"aws_region": "x"})
