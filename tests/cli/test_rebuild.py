"""`reput rebuild --target`. That its bytes are RocketMQ's is held by the golden tests."""

from __future__ import annotations

import json

import pytest

from reput.cli import main
from reput.cli.rebuild import rebuild_text

pytestmark = pytest.mark.processes


def test_the_views_that_are_named_are_built(golden_read_only, golden_about, tmp_path, capsys):
    """Each is a row; the store stays as it is, which the fixture holds."""
    store, target = golden_read_only("batch-4.9") / "store", tmp_path / "target"
    assert main(["rebuild", str(store), "index", "--target", str(target), "--format", "json"]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(row) == ["view", "records", "bytes", "seconds", "target", "swapped"]
    assert (row["view"], row["swapped"], row["target"]) == ("index", False, str(target))
    assert row["bytes"] == golden_about("batch-4.9")["maxOffsetOfRealStore"]
    assert (target / "index").is_dir()
    assert not (target / "consumequeue").exists()


def test_by_default_all_enabled_views_are_built(golden_read_only, tmp_path, capsys):
    """Which --set may change."""
    store, target = golden_read_only("lmq-5.3") / "store", tmp_path / "target"
    assert main(["rebuild", str(store), "--target", str(target), "--set", "dispatchers=consume_queue"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("consume_queue: 60 records, ")
    assert line.endswith(f" to {target}")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((), "--target"), (("no_such_view", "--target", "TARGET"), "no_such_view"), (("--target", "STORE"), "target=")],
)
def test_a_wrong_request_builds_nothing(arguments, named, golden_read_only, tmp_path, capsys):
    """Exit code 2; no target is made."""
    store, target = golden_read_only("lmq-5.3") / "store", tmp_path / "target"
    places = {"TARGET": str(target), "STORE": str(store)}
    assert main(["rebuild", str(store), *(places.get(word, word) for word in arguments)]) == 2
    assert named in capsys.readouterr().err
    assert not target.exists()


def test_what_is_not_known_is_a_hyphen():
    """Never a 0."""
    row = {"view": "index", "records": None, "bytes": 9, "seconds": 1.234, "target": "/t", "swapped": False}
    assert rebuild_text(row) == "index: - records, 9 bytes of the log in 1.23 s to /t"
