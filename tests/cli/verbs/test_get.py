"""`reput get`. The golden tests compare its results with RocketMQ's."""

from __future__ import annotations

import json

import pytest

from reput.cli import main


@pytest.fixture
def rows(golden_read_only, capsys):
    """Return the rows of a get from one store, and check its exit code."""
    store = golden_read_only("basic-5.3") / "store"

    def get(*arguments: object, code: int = 0) -> list[dict[str, object]]:
        assert main(["get", str(store), *map(str, arguments), "--format", "json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return get


def test_messages_come_in_the_order_of_the_queue(rows):
    """One by default, or as many as requested."""
    [first] = rows("Meadow_orders-12", 0, 3)
    assert (first["topic"], first["queue_id"], first["queue_offset"]) == ("Meadow_orders-12", 0, 3)
    assert [row["queue_offset"] for row in rows("Meadow_orders-12", 0, 3, "--count", 4)] == [3, 4, 5, 6]
    assert rows("Meadow_orders-12", 0, 3, "--body", "none")[0].keys() == first.keys() - {"body"}


@pytest.mark.parametrize("where", [("absent", 0, 0), ("Meadow_orders-12", 77, 0), ("Meadow_orders-12", 0, 9999)])
def test_what_is_not_there_is_the_answer_no(rows, where):
    """Exit code 1, and no rows."""
    assert rows(*where, code=1) == []


@pytest.mark.parametrize(
    ("where", "named"),
    [(("t", "zero", "0"), "zero"), (("t", "0", "-1"), "-1"), (("t", "0"), "QUEUE_OFFSET"), (("t", "-1", "0"), "-1")],
)
def test_a_word_where_a_number_is_due_is_refused(golden_read_only, where, named, capsys):
    """Exit code 2; the error names it."""
    assert main(["get", str(golden_read_only("basic-5.3") / "store"), *where]) == 2
    assert named in capsys.readouterr().err


@pytest.fixture
def queue(golden):
    """Return a store to be damaged, and the files of one of its queues."""
    store = golden("basic-5.3") / "store"
    return store, sorted((store / "consumequeue" / "Meadow_orders-12" / "0").iterdir())


def test_a_queue_file_of_garbage_is_an_error_that_says_so(queue, capsys):
    """It does not look like a queue without messages; other queues can be read."""
    store, files = queue
    for path in files:
        path.write_bytes(b"garbage!" * (path.stat().st_size // 8))
    assert main(["get", str(store), "Meadow_orders-12", "0", "0"]) == 3
    error = capsys.readouterr().err
    assert "the consume queue is damaged: topic=Meadow_orders-12 queue_id=0" in error
    assert "reput rebuild STORE consume_queue" in error
    assert main(["get", str(store), "Meadow_orders-12", "1", "0"]) == 0


def test_what_lies_before_garbage_is_there(queue, capsys):
    """Earlier messages are printed, and then the error has the begin of the garbage."""
    store, files = queue
    count = files[0].stat().st_size // 20
    files[0].write_bytes(files[0].read_bytes()[:200] + b"\xff" * (count * 20 - 200))
    for path in files[1:]:
        path.unlink()
    assert main(["get", str(store), "Meadow_orders-12", "0", "8", "--count", "20", "--format", "json"]) == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert "queue_offset=10: no unit stands there" in printed.err
    assert main(["get", str(store), "Meadow_orders-12", "0", "8", "--count", "2"]) == 0
    assert main(["get", str(store), "Meadow_orders-12", "0", "10"]) == 3


def test_garbage_in_the_middle_is_not_passed_over(queue, capsys):
    """The queue continues after it."""
    store, files = queue
    files[0].write_bytes(b"\xff" * files[0].stat().st_size)
    last = int(files[1].name) // 20
    assert main(["get", str(store), "Meadow_orders-12", "0", str(last)]) == 0
    assert main(["get", str(store), "Meadow_orders-12", "0", str(last - 1)]) == 3
    assert f"queue_offset={last - 1}: no unit stands there" in capsys.readouterr().err
