"""Which types a column may have after which, in Delta's and in Iceberg's tables."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.evolution import merged_schema

KINDS: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(12,4)": pa.decimal128(12, 4),
    "decimal(21,2)": pa.decimal128(21, 2),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}
# As the page on typed tables says it.
BOTH = {
    ("int", "bigint"),
    ("float", "double"),
    ("decimal(9,2)", "decimal(12,2)"),
    ("decimal(9,2)", "decimal(21,2)"),
    ("decimal(12,2)", "decimal(21,2)"),
}
DELTA_ALONE = {
    ("int", "double"),
    ("int", "decimal(12,2)"),
    ("int", "decimal(21,2)"),
    ("bigint", "decimal(21,2)"),
    ("decimal(9,2)", "decimal(12,4)"),
    ("date", "timestamp_ntz"),
}
WIDENED = {"delta": BOTH | DELTA_ALONE, "iceberg": BOTH}
PAIRS = list(itertools.permutations(KINDS, 2))


def schemas(*names: str) -> list[pa.Schema]:
    """Return a schema of one column for each type."""
    return [pa.schema([pa.field("x", KINDS[name])]) for name in names]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_type_is_widened_kept_or_refused(table_format: str):
    """Widened to one that holds every value, kept if it holds every new value itself, and otherwise refused."""
    widened = WIDENED[table_format]
    for kept, asked in PAIRS:
        if (kept, asked) in widened or (asked, kept) in WIDENED["delta"]:
            found = merged_schema(*schemas(kept, asked), "lake/orders", table_format).field("x").type
            assert found == KINDS[asked if (kept, asked) in widened else kept]
            continue
        with pytest.raises(ConfigError) as refused:
            merged_schema(*schemas(kept, asked), "lake/orders", table_format)
        assert f"table=lake/orders column=x kept={KINDS[kept]} asked={KINDS[asked]}" in str(refused.value)
        assert ("a Delta table can" in str(refused.value.advice)) == ((kept, asked) in DELTA_ALONE)


def test_iceberg_tables_are_widened_as_pyiceberg_promotes():
    """Its rules for readers are those of Iceberg's specification, second version, to which our tables keep."""
    pyiceberg = pytest.importorskip("pyiceberg")
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import promote

    def type_of(name: str) -> object:
        schema = pa.schema([pa.field("x", KINDS[name], metadata={"PARQUET:field_id": "1"})])
        return pyarrow_to_schema(schema).fields[0].field_type

    promoted = set()
    for kept, asked in PAIRS:
        try:
            promote(type_of(kept), type_of(asked))  # type: ignore[arg-type]
        except pyiceberg.exceptions.ResolveError:
            continue
        promoted.add((kept, asked))
    # It also reads texts as bytes and bytes as texts, and does not compare the scales of decimals.
    alike = {pair for pair in promoted if pair[0][-2:] == pair[1][-2:] or "decimal" not in pair[0]}
    assert alike - {("string", "binary"), ("binary", "string")} == WIDENED["iceberg"]
