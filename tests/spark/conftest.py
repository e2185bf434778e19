"""One quiet Spark for all tests of this folder, stopped afterwards; and a catalog of Iceberg tables for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(spark_classes: None) -> Iterator[Any]:
    """Return the session, started like an export's."""
    from reput_plugins.spark_export.spark_session import spark_session

    settings = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "1",
        # Compiling a query takes longer than it would save with the few rows of a test.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # For the test that serves Spark Connect from it.
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    with spark_session(settings, "tests") as session:
        yield session


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a catalog of pyiceberg's configuration."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", f"sqlite:///{tmp_path / 'mine.db'}")
    # pyiceberg reads the environment when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return "mine"
