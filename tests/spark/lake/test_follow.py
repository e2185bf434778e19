"""`follow`: a lake grows with the log, for as long as a caller iterates over its transactions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reput.errors import ConfigError, NotAStore
from reput_plugins.spark_export import follow
from spark.lakes import offsets_in
from written_log import WrittenLog

pytestmark = pytest.mark.spark


def append(log: WrittenLog, count: int) -> None:
    """Append records and write them."""
    for _ in range(count):
        log.append(b"body %d" % len(log.offsets) * 10)
    log.save()


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_the_lake_grows_with_the_log(spark: Any, tmp_path: Path, lake_format: str):
    """Each transaction is reported with its lag; stopping and starting again neither loses nor repeats records."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[lake_format])
    log, lake = WrittenLog(tmp_path / "store"), tmp_path / "lake"
    append(log, 40)
    seen: list[tuple[int, int]] = []
    options: dict[str, Any] = {"interval_ms": 50, "lake_format": lake_format}
    with closing(follow(log.store, lake, on_progress=lambda *done: seen.append(done), **options)) as rows:
        first = next(rows)
        assert (first.begin, first.until, first.records) == (0, log.end, 40)
        assert (first.lag_bytes, first.lag_messages, first.lag_seconds) == (0, 0, 0.0)
        append(log, 30)
        second = next(rows)
        assert (second.begin, second.until, second.table_version) == (first.until, log.end, first.table_version + 1)
        assert offsets_in(lake) == log.offsets
    assert seen[-1][1] >= first.until
    append(log, 5)
    with closing(follow(log.store, lake, **options)) as rows:
        assert next(rows).records == 5
    assert offsets_in(lake) == log.offsets


def test_what_is_wrong_is_told_before_spark_starts(tmp_path: Path):
    """A directory that is not a store, a setting that is not one of Spark."""
    with pytest.raises(NotAStore):
        next(follow(tmp_path, tmp_path / "lake"))
    with pytest.raises(ConfigError, match="setting=flush"):
        next(follow(tmp_path, tmp_path / "lake", settings={"flush": "1"}))
