"""One Spark for all tests of this folder, quiet, and gone afterwards."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

HAS_SPARK = all(importlib.util.find_spec(name) for name in ("pyspark", "deltalake")) and shutil.which("java")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Spark where it is missing."""
    if not HAS_SPARK:
        for item in items:
            if item.get_closest_marker("spark"):
                item.add_marker(pytest.mark.skip(reason="needs Java and the extra spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return the session, started as an export starts it."""
    from reput_plugins.spark_export.spark_session import spark_session

    with spark_session({"spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"}, "tests") as session:
        yield session
