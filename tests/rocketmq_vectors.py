"""RocketMQ's test vectors as test parameters; ``vectors/data/README.md`` describes their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["DATA", "store_vectors"]

DATA = Path(__file__).parent / "vectors" / "data"


def store_vectors(kind: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test once for each store vector of *kind*, as the argument ``vector``."""
    every: list[dict[str, Any]] = json.loads((DATA / "store-vectors.json").read_text("utf-8"))["vectors"]
    vectors = [pytest.param(vector, id=vector["id"]) for vector in every if vector["kind"] == kind]
    assert vectors, kind
    return pytest.mark.parametrize("vector", vectors)
