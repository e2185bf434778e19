"""DefaultSource: what Spark finds under the name ``reput``."""

from __future__ import annotations

import json
import sys
from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from pyspark_reput.batch_reader import BatchReader, FilteringBatchReader
from pyspark_reput.read_options import ReadOptions, parse_options
from pyspark_reput.spark_schema import spark_schema
from pyspark_reput.store_writer import StoreStreamWriter, StoreWriter, WriteOptions
from pyspark_reput.stream_reader import StreamReader
from reput.table.advice_notes import advice_noted

__all__ = ["DefaultSource"]

# The module of the processes in which Spark asks a reader for its filters. It starts them only if
# ``spark.sql.python.filterPushdown.enabled`` is on. Everywhere else it refuses a reader that has `pushFilters`.
PUSH_DOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"
# Properties of a catalog's table that are not options of the source. Source: Spark, TableCatalog.
TABLE_PROPERTIES = frozenset(
    ("provider", "owner", "location", "external", "comment", "collation", "table_type", "is_managed_location")
)
# Metadata of a column, where a catalog's table keeps its options.
OPTIONS_KEY = "reput.options"


class DefaultSource(DataSource):
    """The commit log of one store directory as a table."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = dict(options.items())
        self.of_catalog = "provider" in given
        if self.of_catalog:
            given = {
                name: value
                for name, value in given.items()
                if name not in TABLE_PROPERTIES and not name.startswith("option.")
            }
        self.given = given

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput"

    def parsed(self, schema: StructType | None = None) -> ReadOptions:
        """Return the checked options. Options given now override those that a table's *schema* keeps."""
        kept = {} if schema is None else kept_options(schema)
        return parse_options({**kept, **self.given})

    @advice_noted()
    def schema(self) -> StructType:
        """Return the columns of the chosen ``schemaMode``, or those named in ``columns``.

        Spark keeps a table's schema in its catalog, but not the options of a Python source, so the schema keeps them.
        """
        schema = spark_schema(self.parsed())
        if not self.of_catalog:
            return schema
        metadata = {OPTIONS_KEY: json.dumps(self.given)}
        return StructType([StructField(field.name, field.dataType, True, metadata) for field in schema.fields])

    @advice_noted()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader for the columns of *schema*."""
        options = self.parsed(schema)
        pushes = options.pushdown and asks_for_filters()
        return (FilteringBatchReader if pushes else BatchReader)(options, schema)

    @advice_noted()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader for the columns of *schema*."""
        return StreamReader(self.parsed(schema), schema)

    @advice_noted()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch of messages."""
        return StoreWriter(WriteOptions(self.given, schema, overwrite))

    @advice_noted()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream of messages."""
        return StoreStreamWriter(WriteOptions(self.given, schema, overwrite))


def asks_for_filters() -> bool:
    """Return whether this process is one in which Spark pushes filters down."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return PUSH_DOWN_MODULE in sys.modules or getattr(main, "name", None) == PUSH_DOWN_MODULE


def kept_options(schema: StructType) -> dict[str, str]:
    """Return the options that the columns of a catalog's table keep."""
    for field in schema.fields:
        if OPTIONS_KEY in field.metadata:
            kept: dict[str, str] = json.loads(field.metadata[OPTIONS_KEY])
            return kept
    return {}
