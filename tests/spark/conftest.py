"""One Spark for all tests of this folder, quiet, and gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return the session, started as an export starts it."""
    from reput_plugins.spark_export.spark_session import spark_session

    with spark_session({"spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"}, "tests") as session:
        yield session
