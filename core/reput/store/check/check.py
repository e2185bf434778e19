"""check_store: every record of a log verified as a whole, and every view compared with the log.

    segments ──▶ walk ──▶ records ──▶ requests ──┬──▶ consume_queue ──▶ consume_queue_ext
                  │                              └──▶ index
                  └──▶ damage, stale

One pass, streaming, reading only. It works on a store of reput or RocketMQ that no process has open, and beside a
writer: then it reads up to where the log ended when it began, and a view may be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from reput.errors import OffsetOutOfRange, StoreError
from reput.filter import BloomFilter
from reput.settings import Settings
from reput.store.check.check_consume_queue import ConsumeQueueCheck
from reput.store.check.check_consume_queue_ext import ConsumeQueueExtCheck
from reput.store.check.check_index import IndexCheck
from reput.store.check.expected_records import ExpectedRecords
from reput.store.check.verified_range import RangePlan
from reput.store.config.config_manager import ConfigManager
from reput.store.config.consumer_filter_manager import ConsumerFilterManager
from reput.store.config.consumer_offset_manager import ConsumerOffsetManager, LmqConsumerOffsetManager
from reput.store.config.delay_offset_manager import DelayOffsetManager
from reput.store.config.subscription_group_manager import SubscriptionGroupManager
from reput.store.config.topic_config_manager import TopicConfigManager
from reput.store.disk.files import Clock
from reput.store.index.index_sizes import IndexSizes
from reput.store.log.bad_range import BadRange
from reput.store.log.log_scan import ROW_DTYPE, LogScan
from reput.store.log.segments import Segments
from reput.store.record.record_columns import RecordColumns
from reput.store.recovery.check_fields import FieldsCheck
from reput.store.recovery.check_report import CheckReport, Ranges, ViewReport, held_to_cursor
from reput.store.recovery.damage_list import read_damage
from reput.store.recovery.log_end import find_log_end
from reput.store.recovery.log_tail import find_unforced, judge_tail
from reput.store.recovery.log_walk import Extent, LogWalk, ProvedRecords
from reput.store.recovery.recovery import present_recreated_queues
from reput.store.recovery.recreated_queues import RecreatedQueue, read_recreated_queues
from reput.store.recovery.verified_walk import VerifiedWalk
from reput.store.state.dispatcher_cursors import read_dispatcher_cursors
from reput.store.state.identity import read_store_id, require_store
from reput.store.state.recorded_settings import read_delay_history
from reput.store.state.rocksdb_folders import rocksdb_notes
from reput.store.state.store_lock import StoreLock, is_claimed

__all__ = ["Verifier", "check_store"]

# Has the log verified from one commit-log offset to another, by others with `verify_range`, and gives what they found,
# in order.
Verifier = Callable[[RangePlan, int, int], Iterable[Extent]]
# The stored configuration, except the filters.
CONFIGURATION = (
    TopicConfigManager,
    SubscriptionGroupManager,
    ConsumerOffsetManager,
    LmqConsumerOffsetManager,
    DelayOffsetManager,
)


def check_store(
    store_directory: Path,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
    verifier: Verifier | None = None,
) -> CheckReport:
    """Verify the log of a store and compare its views with it.

    Args:
        settings: values that the files do not show: delay levels, and the sizes of index files without entries.
        progress: called now and then with how many bytes of the log are done.
        verifier: reads the log elsewhere. The report is the same.

    Raises:
        NotAStore: the directory holds no commit log.
        DamagedStore: the disk cannot read the log.
    """
    require_store(store_directory)
    while True:
        known = Segments(store_directory / "commitlog").begins
        try:
            return check_once(store_directory, settings, progress or (lambda done: None), verifier)
        except OffsetOutOfRange:
            # Retention took what was to be read out of its order: the rest is looked at once more.
            if Segments(store_directory / "commitlog").begins == known:
                raise


def check_once(
    store_directory: Path, settings: Settings, tell: Callable[[int], None], verifier: Verifier | None
) -> CheckReport:
    """Do what `check_store` does, on a log that is not trimmed while its end, or the recreated queues, are found out.

    Raises:
        OffsetOutOfRange: it was.
    """
    known = read_recreated_queues(store_directory)
    report = StoreCheck(store_directory, settings, tell, verifier, known).run()
    if report.views["consume_queue"].state == "different" and not is_claimed(store_directory):
        # RocketMQ may have deleted topics, and made them again, which takes a look at all of the log to find out.
        segments = Segments(store_directory / "commitlog")
        recreated = present_recreated_queues(store_directory, segments, read_store_id(store_directory))
        if recreated != known:
            report = StoreCheck(store_directory, settings, tell, verifier, recreated).run()
    return report


class StoreCheck:
    """One check of one store."""

    def __init__(
        self,
        store_directory: Path,
        settings: Settings,
        progress: Callable[[int], None],
        verifier: Verifier | None,
        recreated: Sequence[RecreatedQueue],
    ) -> None:
        self.store_directory = store_directory
        self.settings = settings
        self.progress = progress
        self.segments = Segments(store_directory / "commitlog")
        self.writer = StoreLock.look(store_directory)
        is_written = self.writer.held is not False
        self.clean_shutdown = not (store_directory / "abort").exists()
        # A writer that is at work has not left its last record torn.
        unclean = not is_written and not self.clean_shutdown
        self.live_end = find_log_end(store_directory, self.segments) if is_written else None
        unforced_from = None if is_written else find_unforced(store_directory, Clock().boot_id())
        demand_crc = settings.force_verify_prop_crc
        delay_history = read_delay_history(store_directory, settings.message_delay_level)
        self.scan = LogScan(store_directory, delay_history=delay_history)
        self.damaged: Ranges = []
        self.damage: list[BadRange] = []
        self.stale: list[BadRange] = []
        self.record_count = 0
        self.left_out = 0
        self.fields = FieldsCheck(self.segments.offset_min, Clock().now_ms())
        self.expected_records = ExpectedRecords(store_directory, recreated, live=is_written)
        sizes = IndexSizes(settings.max_hash_slot_num, settings.max_index_num)
        self.ext = ConsumeQueueExtCheck(store_directory, self.expected_records)
        self.consume_queue = ConsumeQueueCheck(store_directory, self.ext, self.expected_records, self.damaged)
        self.index = IndexCheck(store_directory, sizes, self.expected_records, self.damaged, unclean=unclean)
        self.walk = LogWalk(self.segments, unclean=unclean, unforced_from=unforced_from, demand_crc=demand_crc)
        # Ext units are found by the addresses in the queues, in the order of the log.
        if verifier is not None and self.ext.absent:
            end = find_log_end(store_directory, self.segments) if self.live_end is None else self.live_end
            plan = RangePlan(
                str(store_directory),
                settings.message_delay_level,
                sizes,
                recreated,
                live=is_written,
                unclean=unclean,
                demand_crc=demand_crc,
            )
            self.walk = VerifiedWalk(
                self.segments,
                verifier(plan, self.segments.offset_min, end),
                unclean=unclean,
                unforced_from=unforced_from,
                demand_crc=demand_crc,
                accepts=self.index.can_pass,
            )

    def run(self) -> CheckReport:
        """Run the whole check."""
        begin = self.segments.offset_min
        tail: Extent | None = None
        if self.live_end is None or self.live_end > begin:
            for extent in self.extents():
                if extent.columns is not None:
                    self.take(extent.columns, extent.end, extent.proved)
                elif extent.kind == "damage":
                    self.damaged.append((extent.begin, extent.end))
                    self.damage.append(BadRange(extent.begin, extent.end, extent.reason))
                    self.fields.pass_damage(extent.end)
                elif extent.kind in ("stale", "tail"):
                    tail = extent
                self.progress(extent.end - begin)
                if self.live_end is not None and extent.end >= self.live_end:
                    break
        log_end = self.walk.log_end if self.live_end is None else self.live_end
        if self.live_end is None:
            self.judge_end(tail)
        self.damage += self.fields.finish()
        self.add_known_damage()
        cursors = {} if self.writer.held is not False else read_dispatcher_cursors(self.store_directory)
        views = {
            name: held_to_cursor(report, log_end, cursors.get(name))
            for name, report in (
                ("consume_queue", self.consume_queue.finish(log_end)),
                ("consume_queue_ext", self.ext.finish(log_end)),
                ("index", self.index.finish(log_end)),
            )
        }
        return CheckReport(
            ok=not self.damage and not any(view.state == "different" for view in views.values()),
            store=str(self.store_directory),
            segments=len(self.segments.list),
            records=self.record_count,
            bytes=max(log_end - begin - self.left_out, 0),
            clean_shutdown=self.clean_shutdown,
            damage=self.damage,
            stale=self.stale,
            views=views,
            notes=[
                *self.notes(log_end),
                *absent_notes(views, cursors),
                *unchecked_notes(views, self.store_directory, self.settings),
                *configuration_notes(self.store_directory, self.settings),
                *rocksdb_notes(self.store_directory),
            ],
        )

    def extents(self) -> Iterator[Extent]:
        """Yield the extents of the log. Segments that retention removes before they are read are left out."""

        def trimmed(begin: int, end: int) -> None:
            self.expected_records.refresh()
            self.left_out += end - begin
            # Records before the damage prove nothing about records behind it.
            self.fields.pass_damage(end)

        return self.walk.walk_what_is_left(self.segments.offset_min, self.live_end, trimmed)

    def take(self, columns: RecordColumns, end: int, proved: ProvedRecords | None) -> None:
        """Compare the views with the records of one extent. *proved*: others have, and *columns* are a few of them."""
        if self.live_end is not None and end > self.live_end:
            # Ranges that others verify end before.
            assert proved is None
            count = int(np.searchsorted(columns.header["commit_log_offset"].astype(np.int64), self.live_end))
            columns, end = columns.until(count), self.live_end
        self.record_count += len(columns) if proved is None else proved.count
        self.fields.take(columns, telling=proved is not None)
        requests = self.scan.requests(columns)
        rows = np.frombuffer(requests.rows, ROW_DTYPE)
        if proved is not None:
            self.consume_queue.take_proved(rows, requests)
            self.index.take_proved(proved)
            return
        self.ext.prepare(columns)
        self.consume_queue.take(rows, requests)
        self.index.take(rows, requests, end)

    def judge_end(self, tail: Extent | None) -> None:
        """Tell whether the log ends where it was closed."""
        judged = judge_tail(self.store_directory, self.walk, tail)
        if judged is None:
            return
        found = BadRange(judged.begin, judged.end, judged.reason)
        (self.damage if judged.kind == "damage" else self.stale).append(found)

    def add_known_damage(self) -> None:
        """List the damage that an operator has accepted, though it may look like something else by now."""
        for known in read_damage(self.store_directory).ranges:
            if not any(found.begin <= known.begin and known.end <= found.end for found in self.damage):
                self.damage.append(BadRange(known.begin, known.end, known.reason))
        self.damage.sort(key=lambda found: found.begin)

    def notes(self, log_end: int) -> list[str]:
        """Return what else is worth knowing."""
        notes = []
        if self.writer.held is not False:
            notes.append(
                "another process writes this store, so it was checked as far as it went: "
                f"pid={self.writer.pid or 'unknown'} until={log_end}"
            )
        for topic in sorted(self.consume_queue.left_alone):
            notes.append(
                f"topic has a batch consume queue (RocketMQ 5, queue.type=BatchCQ), which is left alone: topic={topic}"
            )
        return notes


def absent_notes(views: Mapping[str, ViewReport], cursors: Mapping[str, int | None]) -> list[str]:
    """Return a sentence for each view that a dispatcher was to build and of which there is nothing."""
    return [
        f"there is nothing of the view of an enabled dispatcher: view={name} "
        f"durable_cursor={'unknown' if cursors[name] is None else cursors[name]}; "
        "it is built when the store is opened for writing"
        for name, report in views.items()
        if report.state == "absent" and name in cursors
    ]


def unchecked_notes(views: Mapping[str, ViewReport], store_directory: Path, settings: Settings) -> list[str]:
    """Return a sentence about the views of plugins, whose formats this check does not know."""
    known = dict.fromkeys((*read_dispatcher_cursors(store_directory), *settings.dispatchers))
    unchecked = [name for name in known if name not in views]
    if not unchecked:
        return []
    return [
        f"the views of other dispatchers are not checked, only they know them: views={','.join(unchecked)}; "
        "`reput rebuild STORE VIEW` builds one again"
    ]


def configuration_notes(store_directory: Path, settings: Settings) -> list[str]:
    """Return a sentence for each file of the stored configuration that cannot be read."""
    filters = BloomFilter(settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter)
    managers: list[ConfigManager] = [kind(store_directory) for kind in CONFIGURATION]
    managers.append(ConsumerFilterManager(store_directory, filters, settings.filter_data_clean_time_span))
    notes = []
    for manager in managers:
        fault = fault_of_configuration(manager, manager.path)
        if fault is not None:
            backup_fault = fault_of_configuration(manager, manager.backup_path)
            is_kept = manager.backup_path.exists() and backup_fault is None
            notes.append(
                f"{fault}; {'its backup is read instead' if is_kept else 'there is no backup that can be read'}"
            )
    return notes


def fault_of_configuration(manager: ConfigManager, path: Path) -> str | None:
    """Return why a file of the stored configuration cannot be read, None if it can, or is absent."""
    try:
        manager.read_whole(path)
    except StoreError as error:
        return str(error)
    return None
