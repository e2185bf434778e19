"""DefaultSource: what Spark finds under the name ``reput``."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_reput.batch_reader import BatchReader, FilteringBatchReader
from pyspark_reput.read_options import ReadOptions, parse_options
from pyspark_reput.spark_schema import spark_schema
from pyspark_reput.store_writer import StoreStreamWriter, StoreWriter, WriteOptions
from pyspark_reput.stream_reader import StreamReader
from reput.table.advice_notes import advice_noted

__all__ = ["DefaultSource", "FilteringSource", "register"]


class DefaultSource(DataSource):
    """The commit log of one store directory as a table."""

    # Default of the option ``pushdown``.
    pushdown = False

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput"

    def parsed(self) -> ReadOptions:
        """Return the checked options."""
        pushdown = {} if any(name.lower() == "pushdown" for name in self.given) else {"pushdown": str(self.pushdown)}
        return parse_options({**self.given, **pushdown})

    @advice_noted()
    def schema(self) -> StructType:
        """Return the columns of the chosen ``schemaMode``."""
        return spark_schema(self.parsed())

    @advice_noted()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader for the columns of *schema*."""
        options = self.parsed()
        return (FilteringBatchReader if options.pushdown else BatchReader)(options, schema)

    @advice_noted()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader for the columns of *schema*."""
        return StreamReader(self.parsed(), schema)

    @advice_noted()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch of messages."""
        return StoreWriter(WriteOptions(self.given, schema, overwrite))

    @advice_noted()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream of messages."""
        return StoreStreamWriter(WriteOptions(self.given, schema, overwrite))


class FilteringSource(DefaultSource):
    """The same source, but with filter push-down on by default."""

    pushdown = True


def register(spark: SparkSession) -> None:
    """Let queries of this session push filters on topic, queue, offsets and time down to the log."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FilteringSource)
