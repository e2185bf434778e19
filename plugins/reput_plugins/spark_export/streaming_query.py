"""StreamingQuery: the Structured Streaming query that keeps a lake up to date.

Its source yields ranges of the log, its sink writes them and commits. It reads up to a limit, kept in a file, that its
owner knows to be durable. Its checkpoint is scratch: the table itself says where the next query begins, so a lost,
stale or half-written checkpoint cannot lose or repeat a record.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reput_plugins.spark_export.lake_sink import PLAN_OPTION, LakeSink, SinkPlan
from reput_plugins.spark_export.spark_errors import from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StreamingQuery"]


class StreamingQuery:
    """One running query. Use it from one thread."""

    def __init__(
        self,
        session: SparkSession,
        plan: SinkPlan,
        scratch: Path,
        begin: int,
        *,
        interval_ms: int,
        batch_bytes_max: int,
        split_bytes: int,
    ) -> None:
        """Start the query at commit-log offset *begin*; *scratch* is its own folder, which is emptied."""
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self.limit_file = scratch / "limit"
        self.set_limit(begin)
        session.dataSource.register(LakeSink)
        ranges = (
            session.readStream.format("reput")
            .option("schemaMode", "ranges")
            .option("startingOffsets", begin)
            .option("limitFile", str(self.limit_file))
            .option("failOnDataLoss", str(plan.table.fail_on_data_loss))
            .option("maxBytesPerTrigger", batch_bytes_max)
            .option("splitBytes", split_bytes)
            .load(plan.store)
        )
        self.query = (
            ranges.writeStream.format("reput_lake")
            .queryName(f"reput {plan.export_name} {plan.store}")
            .option(PLAN_OPTION, msgspec.json.encode(plan).decode())
            .option("checkpointLocation", (scratch / "checkpoint").as_uri())
            .trigger(processingTime=f"{interval_ms} milliseconds")
            .start()
        )

    def set_limit(self, commit_log_offset: int) -> None:
        """Let the query read up to this offset, which is durable and where a record begins or the log ends."""
        # It is read by this query alone, and scratch as its checkpoint: a power cut may take it.
        draft = self.limit_file.with_suffix(".draft")
        draft.write_text(str(commit_log_offset))
        draft.replace(self.limit_file)

    def wait(self, seconds: float) -> None:
        """Wait a while, or until the query fails.

        Raises:
            ReputError: it has failed.
        """
        from pyspark.errors import PySparkException

        try:
            ended = self.query.awaitTermination(seconds)  # type: ignore[arg-type]  # It takes parts of a second.
        except PySparkException as error:
            raise from_spark(error) from error
        if ended:
            raise from_spark(RuntimeError("the streaming query was stopped from outside"))

    def stop(self) -> None:
        """End the query. Between micro-batches nothing is interrupted."""
        self.query.stop()
