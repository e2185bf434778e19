"""`reput get`. That it finds what RocketMQ finds is held by the golden tests."""

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
    """One by default, or as many as are asked for."""
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
    """Exit code 2; the sentence names it."""
    assert main(["get", str(golden_read_only("basic-5.3") / "store"), *where]) == 2
    assert named in capsys.readouterr().err
