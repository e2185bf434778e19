"""An object store that refuses, loses answers, hangs or resets connections loses and doubles no row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
pytest.importorskip("moto")

from faulty_s3 import FAULTS, FaultyS3, faulty_s3
from reput.errors import DispatcherError
from reput_plugins.spark_export import check_lake, export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.typed.typed_folder import inside
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

pytestmark = [pytest.mark.processes, pytest.mark.long]

RECORD_COUNT, HALF = 12, 6
KEY_COUNT = 4
# The columns of the tables of the first export, and of the second: one is widened or added.
COLUMNS = {"typed": ("number int", "number bigint"), "keyed": ("number int", "number int, more string")}
KINDS = ("log", *COLUMNS)


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyS3]:
    """Return an S3 with a bucket named ``lakes``."""
    with faulty_s3("lakes") as found:
        yield found


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of JSON bodies, of which several have the same id."""
    log = WrittenLog(tmp_path / "store")
    for number in range(RECORD_COUNT):
        body = b'{"id": %d, "number": %d}' % (number % KEY_COUNT, number)
        log.append(body, topic=b"orders", store_timestamp=START_MS + number)
    log.save()
    return log


class FaultyLake:
    """One lake of a log in the store; *kind*: the table of the log, a typed table, or one with a key."""

    def __init__(
        self, store: FaultyS3, log: WrittenLog, name: str, kind: str = "log", catalog: str | None = None
    ) -> None:
        self.store, self.log, self.kind = store, log, kind
        self.address = f"s3://lakes/{name}"
        self.given: dict[str, Any] = {"lake_format": "delta"}
        if catalog is not None:
            self.given = {"lake_format": "iceberg", "catalog": catalog}
            self.given |= {"catalog_table": f"sales.{name}"} if kind == "log" else {}

    def tables(self, number: int) -> dict[str, Any] | None:
        """Return the tables of the export with this number."""
        if self.kind == "log":
            return None
        fields = [field.split() for field in f"id int, {COLUMNS[self.kind][number]}".split(", ")]
        names = {"int": "integer", "bigint": "long"}
        schema = {
            "type": "struct",
            "fields": [
                {"name": name, "type": names.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in fields
            ],
        }
        file = self.log.store.parent / f"{number}.json"
        file.write_text(json.dumps(schema))
        keyed = {"mode": "upsert", "key": ["id"]} if self.kind == "keyed" else {}
        return {"tables": {self.table: {"topic": "orders", "format": "json", "schema": str(file), **keyed}}}

    @property
    def table(self) -> str:
        """The name of the typed table, which is also one in the catalog."""
        return self.address.rpartition("/")[2]

    def location(self, options: dict[str, str]) -> LakeLocation:
        """Return where the table lies."""
        found = LakeLocation.of(self.address, options, **self.given)
        return found if self.kind == "log" else inside(found, self.table)

    def export(self, number: int, options: dict[str, str]) -> None:
        """Export the first half of the log, or all of it."""
        until = self.log.offsets[HALF] if number == 0 else None
        with without_spark(2):
            export(
                self.log.store,
                self.address,
                until=until,
                tables=self.tables(number),
                storage_options=options,
                **self.given,
            )

    def steps(self, options: dict[str, str]) -> Iterator[Callable[[], object]]:
        """Yield all that changes the lake: two exports, and a merge of their files."""
        yield lambda: self.export(0, options)
        yield lambda: self.export(1, options)
        maintenance = Maintenance(self.location(options), interval_ms=1, vacuum_hours=1)
        yield lambda: maintenance.merge(lambda: None, all_closed=True)

    def proved(self) -> None:
        """Fail if the lake is not equal to the log."""
        options = self.store.storage_options
        if self.kind == "keyed":
            rows = open_table(self.location(options)).dataset().to_table()
            found = sorted(zip(rows["id"].to_pylist(), rows["number"].to_pylist(), strict=True))
            assert found == [(key, RECORD_COUNT - KEY_COUNT + key) for key in range(KEY_COUNT)]
            return
        report: Any = check_lake(self.log.store, self.address, storage_options=options, **self.given)
        assert report.ok, report

    def try_all(self, options: dict[str, str]) -> str | None:
        """Do all steps up to the first that fails; return its error."""
        try:
            for step in self.steps(options):
                step()
        except DispatcherError as error:
            return str(error)
        return None

    def withstands(self, fault: str, first: int, count: int) -> int:
        """Give *fault* to *count* changes from number *first* on; return the number of all changes."""
        options = self.store.impatient() if fault == "slow" else self.store.storage_options
        self.store.fail(fault, first, count)
        error = self.try_all(options)
        changes = self.store.work()
        assert "\n" not in (error or "")
        assert "not shown" not in (error or "")
        assert self.try_all(self.store.storage_options) is None
        self.proved()
        return len(changes)


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_lost_answer_to_a_change_of_columns_loses_no_row(store: FaultyS3, log: WrittenLog, kind: str):
    """The store has made the transaction, and refuses it when the client sends it once more: its files stay."""
    lake = FaultyLake(store, log, f"columns_{kind}", kind)
    lake.export(0, store.storage_options)
    store.fail("lost", count=1, within=f"/{lake.table}/_delta_log/")
    lake.export(1, store.storage_options)
    assert store.work()
    lake.proved()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_answer_to_a_commit_is_none_of_another_exporter(store: FaultyS3, log: WrittenLog, kind: str):
    """The export recognises its own transaction, and goes on."""
    lake = FaultyLake(store, log, f"commit_{kind}", kind)
    # The first transaction creates the table.
    store.fail("lost", first=1, count=1, within=f"/{lake.table}/_delta_log/")
    lake.export(0, store.storage_options)
    assert store.work()
    lake.export(1, store.storage_options)
    lake.proved()


@pytest.mark.parametrize("count", [1, 1 << 30], ids=["once", "from then on"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_each_change_may_fail(
    store: FaultyS3,
    log: WrittenLog,
    request: pytest.FixtureRequest,
    lake_format: str,
    kind: str,
    fault: str,
    count: int,
):
    """Once, or from then on: the export goes on, or ends with one sentence, and the next one completes the lake.

    Each of the faults is given to another seventh of the changes, so all together meet each change.
    """
    catalog = request.getfixturevalue("catalog") if lake_format == "iceberg" else None
    first = changes = FAULTS.index(fault)
    while first <= changes:
        name = f"{lake_format}_{kind}_{fault}_{'once' if count == 1 else 'on'}_{first}"
        changes = max(changes, FaultyLake(store, log, name, kind, catalog).withstands(fault, first, count) - 1)
        first += len(FAULTS)
