"""Writing a data file of a Delta table anew, with other types or without deleted rows; the others keep their order."""

from __future__ import annotations

import re
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

from reput.store.disk.files import Files
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lakes.deletion_vectors import read_rows
from reput_plugins.spark_export.lakes.delta_deleting import without_deleted
from reput_plugins.spark_export.lakes.lake_table import ParquetFile
from reput_plugins.spark_export.parquet_files import BUFFERED_BYTES_MAX, UNKNOWN_RANGE, FileLayout, PartitionFile
from reput_plugins.spark_export.typed.column_types import conform

__all__ = ["rewrite"]

RANGE = re.compile("[0-9]{20}-[0-9]{20}")


def rewrite(location: LakeLocation, file: ParquetFile, schema: pa.Schema, layout: FileLayout) -> ParquetFile:
    """Write the rows of *file* that are not deleted into a new file with the columns *schema*, and force it to disk.

    Raises:
        OSError: the file cannot be read or written.
    """
    # Named like the files of an export, so that maintenance recognises those that a crash leaves. Merged files do not
    # name their range of the log.
    found = RANGE.match(file.path.rpartition("/")[2])
    name = f"{found[0] if found else UNKNOWN_RANGE}-{uuid.uuid4().hex[:8]}.parquet"
    place = tuple(file.partition[column] for column in layout.partition_columns)
    filesystem = location.filesystem()
    deleted = read_rows(location, file.deletion)
    target = PartitionFile(location, filesystem, place, name, schema, layout)
    try:
        with filesystem.open_input_file(file.path) as stream, pq.ParquetFile(stream) as source:
            buffered = 0
            for batch in without_deleted(source.iter_batches(), deleted):
                rows = conform(pa.table(batch), schema)
                target.batches += rows.to_batches()
                buffered += rows.nbytes
                if buffered >= BUFFERED_BYTES_MAX:
                    target.write()
                    buffered = 0
        written = target.finish()
    except BaseException:
        target.abandon()
        raise
    if target.path is not None:
        Files().force_together([target.path], target.changed_folders)
    return written
