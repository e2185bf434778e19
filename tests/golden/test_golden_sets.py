"""The golden sets themselves, on which the other tests rely."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden_sets import CLEAN_SETS, DATA, PART_SETS, tree_digest


def test_every_packed_set_is_known():
    """Every golden store in the folder is tested, and every tested one exists."""
    assert {path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz")} == {*CLEAN_SETS, *PART_SETS}


@pytest.mark.parametrize("name", [*CLEAN_SETS, *PART_SETS])
def test_every_set_is_as_described(golden_read_only, golden_about, name):
    """Each store holds exactly the files that the broker left, with their sizes and times."""
    folder = golden_read_only(name)
    about = golden_about(name)
    for part, described in about.get("parts", {"": about}).items():
        store = folder / part / "store"
        found = {
            str(path.relative_to(store)): {"size": path.stat().st_size, "mtimeMs": path.stat().st_mtime_ns // 1_000_000}
            for path in store.rglob("*")
            if path.is_file()
        }
        # The paths that RocksDB stores in them were removed.
        for path in [path for path in found if path.startswith("rocksdbstore/OPTIONS-")]:
            found[path]["size"] = described["files"][path]["size"]
        assert found == described["files"]


def test_a_copy_is_fresh_and_writable(golden, golden_read_only):
    """Changes to a test's copy are not visible to other tests."""
    first, second = golden("lmq-5.3"), golden("lmq-5.3")
    assert first != second
    (first / "store" / "checkpoint").write_bytes(b"")
    assert tree_digest(second) == tree_digest(golden_read_only("lmq-5.3"))


def test_a_part_without_a_listing_has_the_head_of_the_shared_one(golden_listing, golden_about):
    """Parts share one listing; each has as many of its lines as its own log has records."""
    parts = golden_about("crash-5.3")["parts"]
    for part, described in parts.items():
        assert len(golden_listing(f"crash-5.3/{part}")) == described["listing"]["records"]


def test_broker_properties_are_what_the_broker_was_started_with(broker_properties, golden_about):
    """One line per setting, in the broker's own spelling."""
    path: Path = broker_properties("basic-5.3")
    lines = dict(line.split("=", 1) for line in path.read_text("utf-8").splitlines())
    assert lines == {name: str(value) for name, value in golden_about("basic-5.3")["brokerSettings"].items()}
