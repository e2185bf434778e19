"""Check the names of topics in a read against the store: a misspelled topic would give an empty result.

With ``fail_on_data_loss=False`` a missing topic is only a warning.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from pathlib import Path

from reput.errors import ConfigError, StoreError
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.record.record_columns import RecordColumns
from reput.table.log_table import LogTable
from reput.table.row_filter import RowFilter

__all__ = ["asked_topics", "require_topics"]

QUEUE_FOLDERS = ("consumequeue", "batchconsumequeue")

Queue = tuple[str, int]

logger = logging.getLogger(__name__)


def asked_topics(row_filter: RowFilter) -> set[str]:
    """Return the topics that *row_filter* names, alone or with a queue. A pattern does not count."""
    named = (row_filter.queues or (), row_filter.queue_ranges or ())
    return {*(row_filter.topics or ()), *(topic for queues in named for topic, _ in queues)}


def require_topics(table: LogTable, topics: Iterable[str]) -> None:
    """Refuse *topics* that the store does not have, or only warn if ``fail_on_data_loss`` is off.

    The store has a topic if the topic is described, has a queue, or has a record in the log. The log is read only for
    topics that are neither described nor have a queue.

    Raises:
        ConfigError: the store does not have one of them.
    """
    known = known_topics(table.store_directory)
    missing = set(topics) - known
    if missing:
        for columns in table.searcher().read(table.offset_min, table.find_end()):
            found = {topic for topic, _ in queues_in(columns)}
            known |= found
            missing -= found
            if not missing:
                break
    for topic in sorted(missing):
        near = difflib.get_close_matches(topic, sorted(known), 1)
        error = ConfigError(
            f"the store has no such topic: topic={topic}{f' nearest={near[0]}' if near else ''} "
            f"store={table.store_directory}",
            "Spell it as in the store. For a future topic, create it first with `reput topic create`.",
        )
        if table.options.fail_on_data_loss:
            raise error
        logger.warning("%s", error)


def known_topics(store_directory: Path) -> set[str]:
    """Return the topics that are described or have a queue."""
    described = TopicConfigManager(store_directory)
    try:
        described.load()
    except StoreError:
        # The queues and the log then show which topics exist.
        logger.warning("the descriptions of topics cannot be read: path=%s", described.path)
    found = set(described.entries)
    for name in QUEUE_FOLDERS:
        folder = store_directory / name
        if folder.is_dir():
            found |= {path.name for path in folder.iterdir() if path.is_dir()}
    return found


def queues_in(columns: RecordColumns) -> list[Queue]:
    """Return the queues of the records in *columns*."""
    return [(topic.decode("utf-8", "replace"), queue_id) for topic, queue_id in columns.queues()[0]]
