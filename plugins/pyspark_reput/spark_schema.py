"""Spark's schema of the rows, and the columns that a user's schema selects from it."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_reput.read_options import ReadOptions
from reput.errors import ConfigError

__all__ = ["DAMAGE_SCHEMA", "RANGES_SCHEMA", "arrow_schema", "chosen_columns", "spark_schema"]

RANGES_SCHEMA = pa.schema([("begin", pa.int64()), ("until", pa.int64())])
DAMAGE_SCHEMA = pa.schema([("begin", pa.int64()), ("until", pa.int64()), ("reason", pa.string())])


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """Return the whole schema of the chosen mode."""
    if options.schema_mode == "ranges":
        return RANGES_SCHEMA
    if options.schema_mode == "damage":
        return DAMAGE_SCHEMA
    return options.table.row_format.schema()


def spark_schema(options: ReadOptions) -> StructType:
    """Return the columns of the option ``columns`` as a Spark type, else the whole schema of the chosen mode.

    Raises:
        ConfigError: a column does not exist in that mode.
    """
    schema: StructType = from_arrow_schema(arrow_schema(options))
    if options.columns is None:
        return schema
    known = {field.name: field for field in schema.fields}
    for name in options.columns:
        if name not in known:
            raise no_such_column(name, options, known)
    return StructType([known[name] for name in options.columns])


def no_such_column(name: str, options: ReadOptions, known: Iterable[str]) -> ConfigError:
    """Return the error for a column that the mode does not have."""
    return ConfigError(f"no such column: column={name} schemaMode={options.schema_mode} columns={','.join(known)}")


def chosen_columns(options: ReadOptions, schema: StructType) -> tuple[str, ...]:
    """Return the columns of *schema*, which may be any columns of the mode, in any order.

    Raises:
        ConfigError: a column is not in the mode's schema, has another type or comes twice, or must not be null.
    """
    known = {field.name: field.dataType for field in from_arrow_schema(arrow_schema(options)).fields}
    for field in schema.fields:
        if field.name not in known:
            raise no_such_column(field.name, options, known)
        if field.dataType != known[field.name]:
            raise ConfigError(
                f"the column has another type: column={field.name} type={known[field.name].simpleString()} "
                f"asked={field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise ConfigError(f"every column may be null: column={field.name}", "Leave NOT NULL out of the schema.")
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise ConfigError(f"the schema has a column twice: column={repeated[0]}")
    return tuple(schema.names)
