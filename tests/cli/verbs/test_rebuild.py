"""`reput rebuild --target`. The golden tests compare its bytes with RocketMQ's."""

from __future__ import annotations

import json

import pytest

from process.probe_plugin import PluginFolder
from reput.cli import main
from reput.cli.verbs import rebuild
from reput.cli.verbs.rebuild import rebuild_text

pytestmark = pytest.mark.processes


@pytest.fixture
def writable_store(golden):
    """A store that RocketMQ wrote and closed."""
    return golden("basic-5.3") / "store"


def test_the_views_that_are_named_are_built(golden_read_only, golden_about, tmp_path, capsys):
    """Each is a row; the fixture checks that the store is unchanged."""
    store, target = golden_read_only("batch-4.9") / "store", tmp_path / "target"
    assert main(["rebuild", str(store), "index", "--target", str(target), "--format", "json"]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(row) == ["view", "records", "bytes", "seconds", "target", "swapped"]
    assert (row["view"], row["swapped"], row["target"]) == ("index", False, str(target))
    assert row["bytes"] == golden_about("batch-4.9")["maxOffsetOfRealStore"]
    assert (target / "index").is_dir()
    assert not (target / "consumequeue").exists()


def test_by_default_all_enabled_views_are_built(golden_read_only, tmp_path, capsys):
    """--set can change them."""
    store, target = golden_read_only("lmq-5.3") / "store", tmp_path / "target"
    assert main(["rebuild", str(store), "--target", str(target), "--set", "dispatchers=consume_queue"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("consume_queue: 60 records, ")
    assert line.endswith(f" to {target}")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("no_such_view", "--target", "TARGET"), "no_such_view"), (("--target", "STORE"), "target=")],
)
def test_a_wrong_request_builds_nothing(arguments, named, golden_read_only, tmp_path, capsys):
    """Exit code 2; no target is created."""
    store, target = golden_read_only("lmq-5.3") / "store", tmp_path / "target"
    places = {"TARGET": str(target), "STORE": str(store)}
    assert main(["rebuild", str(store), *(places.get(word, word) for word in arguments)]) == 2
    assert named in capsys.readouterr().err
    assert not target.exists()


def test_a_store_that_nobody_has_open_is_rebuilt_in_place(writable_store, capsys):
    """Each view has a row; views that refer to a rebuilt one are rebuilt, too."""
    before = {path: path.stat().st_ino for path in (writable_store / "consumequeue", writable_store / "index")}
    assert main(["rebuild", str(writable_store), "consume_queue", "--format", "json"]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["view"], row["swapped"], row["target"]) == ("consume_queue", True, str(writable_store))
    assert (writable_store / "consumequeue").stat().st_ino != before[writable_store / "consumequeue"]
    assert (writable_store / "index").stat().st_ino == before[writable_store / "index"]
    assert main(["rebuild", str(writable_store), "consume_queue_ext"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["consume_queue_ext", "consume_queue"]
    assert lines[0].endswith(", swapped in")
    assert main(["check", str(writable_store)]) == 0


def test_only_a_store_is_rebuilt_in_place(tmp_path, capsys):
    """A missing store is not created."""
    assert main(["rebuild", str(tmp_path / "nothing")]) == 3
    assert "nothing" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "store").mkdir()
    assert main(["rebuild", str(tmp_path / "store")]) == 3
    assert list((tmp_path / "store").iterdir()) == []


def test_another_engine_builds_what_is_asked_for(golden_read_only, monkeypatch, tmp_path, capsys):
    """Its rows have the form of the local engine's, and its rejected records become dead letters."""
    store, target = golden_read_only("batch-4.9") / "store", tmp_path / "target"

    class Built:
        view, records, bytes, seconds, target, refused = "index", 3, 900, 1.5, "/t", [(0, "a reason")]

    class Engine:
        @staticmethod
        def rebuild(directory, views, target, settings, on_progress):
            on_progress("index", 1, 2)
            assert (directory, tuple(views)) == (store, ("index",))
            yield Built

    monkeypatch.setattr(rebuild, "find_engine", lambda name: Engine)
    command = ["rebuild", str(store), "index", "--target", str(target), "--engine", "other", "--format", "json"]
    assert main(command) == 0
    row = {"view": "index", "records": 3, "bytes": 900, "seconds": 1.5, "target": "/t", "swapped": False}
    assert json.loads(capsys.readouterr().out) == row
    [letter] = (target / "reput" / "dead_letters" / "index.jsonl").read_text().splitlines()
    assert json.loads(letter)["reason"] == "a reason"
    assert main(["rebuild", str(store), "index", "--engine", "other"]) == 2
    assert "--target" in capsys.readouterr().err


def test_what_is_not_known_is_a_hyphen():
    """Never a 0."""
    row = {"view": "index", "records": None, "bytes": 9, "seconds": 1.234, "target": "/t", "swapped": False}
    assert rebuild_text(row) == "index: - records, 9 bytes of the log in 1.23 s to /t"


@pytest.mark.parametrize("arguments", [["rebuild", "sink"], ["rebuild", "sink", "--target"], ["dispatcher", "debug"]])
def test_a_view_that_lies_elsewhere_is_refused_without_force(arguments, writable_store, tmp_path, monkeypatch, capsys):
    """Exit code 2; no record leaves the store, and the advice has the option."""
    folder = PluginFolder(tmp_path / "plugins")
    folder.add("sink", 'reads="durable", view_elsewhere=True')
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if arguments[0] == "rebuild":
        words = ["rebuild", str(writable_store), *arguments[1:]]
        words += [str(tmp_path / "target")] if "--target" in words else []
    else:
        words = [*arguments, str(writable_store), "sink"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "the view lies elsewhere, and the records of the log would be sent there again: dispatcher=sink" in error
    assert "--force" in error
    assert not (writable_store / "sink.events").exists()
