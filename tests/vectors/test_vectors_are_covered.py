"""Every vector of RocketMQ is checked by a test, except for features that reput does not have.

These are replication, and the queues of RocketMQ 5's BatchCQ topics.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from rocketmq_vectors import DATA

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
NOT_DONE_HERE = {"ha_slave_report", "ha_master_frame"}


def strings(path: Path) -> set[str]:
    """Return every string in a test module."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_kind_of_store_vector_has_a_test():
    """A kind is covered if a test module names it; `store_vectors` then runs all vectors of that kind."""
    vectors = json.loads((DATA / "store-vectors.json").read_text("utf-8"))["vectors"]
    named = set[str]().union(*(strings(path) for path in TESTS.rglob("test_*.py") if path != Path(__file__)))
    assert {vector["kind"] for vector in vectors} - NOT_DONE_HERE - named == set()


def test_every_file_of_vectors_has_a_test():
    """So are the vectors of the filters."""
    named = set[str]().union(*(strings(path) for path in TESTS.rglob("*.py") if path != Path(__file__)))
    for path in DATA.glob("*.json"):
        assert any(path.name in text for text in named), path.name
