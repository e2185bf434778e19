"""The demo: the whole product once, on a store that RocketMQ wrote and on a scratch store, every claim checked.

    1  a bundled RocketMQ store is re-put by dispatcher processes; the bytes must equal RocketMQ's
    2  a scratch store is opened with its process group; messages are appended, the views follow live
    3  one dispatcher is killed, and catches up by itself
    4  messages are read by queue, by tag and by key
    5  the log is exported to a Delta table with Spark, where Java is
    6  every view is checked against the log

The command line prints what `run_demo` reports; exit 0 only if every check held.
"""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import msgspec

import reput
from reput.embedded.store import Store
from reput.errors import WaitTimeout
from reput.plugin_jobs import DELTA, find_export
from reput.process.control.dispatcher_row import DispatcherRow
from reput.process.owner.offline_rebuild import rebuild
from reput.settings import load_settings
from reput.store.check.check import check_store
from reput.store.state.recorded_settings import load_store_settings

__all__ = ["Check", "DemoReport", "DemoReporter", "run_demo"]

BUNDLED = Path(__file__).with_name("rocketmq_store.tar.gz")
VIEWS = ("consume_queue", "index")
TOPIC = "orders"
TAGS = ("created", "paid", "shipped")
QUEUE_COUNT = 4
BATCH = 100
REPORT_EVERY_S = 0.1
CATCH_UP_TIME_MAX = 60.0


class Check(msgspec.Struct, frozen=True):
    """One claim: *held* is None if it was not tried; *detail* says why."""

    name: str
    held: bool | None
    detail: str


class DemoReport(msgspec.Struct, frozen=True):
    """All claims, and the folder with the demo's files."""

    directory: Path
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether every claim that was tried held."""
        return all(check.held is not False for check in self.checks)


class DemoReporter(Protocol):
    """Displays a running demo."""

    def step(self, title: str) -> None:
        """Show that a part begins."""

    def progress(self, appended: int, rows: Sequence[DispatcherRow]) -> None:
        """Show the log's end and the dispatchers' positions."""

    def result(self, check: Check) -> None:
        """Show the result of a claim."""


def run_demo(directory: Path, reporter: DemoReporter, *, records: int = 100_000, spark: bool = True) -> DemoReport:
    """Run the demo in *directory*, an empty folder that it leaves behind for a look.

    Args:
        records: messages appended to the scratch store.
        spark: export with Spark if Java is available; False: report that this part was skipped on request.
    """
    demo = Demo(directory, reporter, records)
    demo.reput_a_store_of_rocketmq()
    demo.use_a_store_of_our_own()
    demo.export(spark)
    demo.check()
    return DemoReport(directory, demo.checks)


class Demo:
    """One run, part by part."""

    def __init__(self, directory: Path, reporter: DemoReporter, records: int) -> None:
        self.directory = directory
        self.reporter = reporter
        self.records = records
        self.checks: list[Check] = []
        self.rocketmq = directory / "rocketmq"
        self.store = directory / "store"
        self.lake = directory / "lake"

    def claim(self, name: str, held: bool | None, detail: str) -> None:
        """Record the result of a claim, and show it."""
        check = Check(name, held, detail)
        self.checks.append(check)
        self.reporter.result(check)

    def reput_a_store_of_rocketmq(self) -> None:
        """Rebuild the views of a bundled store, in processes, and compare the bytes."""
        self.reporter.step("A store that Apache RocketMQ wrote: its views rebuilt from the log")
        with tarfile.open(BUNDLED) as archive:
            # The parameter `filter` came with Python 3.11.4; Debian 12 has 3.11.2, which does not read the attribute.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(self.rocketmq)
        source, target = self.rocketmq / "store", self.rocketmq / "rebuilt"
        settings = load_settings(self.rocketmq / "broker.properties").settings
        for row in rebuild(source, VIEWS, target, settings):
            folder = {"consume_queue": "consumequeue"}.get(row.view, row.view)
            different, compared = compare_folders(source / folder, target / folder)
            self.claim(
                f"{row.view} equals RocketMQ's",
                not different,
                f"{row.records} records, {compared} files"
                + ("" if not different else f", different: {', '.join(different[:3])}"),
            )

    def use_a_store_of_our_own(self) -> None:
        """Append with the group attached, kill a dispatcher, and read."""
        self.reporter.step(f"A new store: {self.records} messages, each view built by its own process")
        with reput.open(self.store) as store:
            assert isinstance(store, Store)
            half = self.records // 2
            put_per_s = self.append(store, 0, half)
            self.catch_up(store)
            self.claim("every view has caught up", True, f"{half} messages, {put_per_s:,.0f} a second")
            self.kill_one(store, half)
            self.read(store)

    def append(self, store: Store, first: int, until: int) -> float:
        """Put messages and report the views' progress; return the rate per second."""
        began = reported = time.perf_counter()
        for at in range(first, until, BATCH):
            store.put_batch([message(number) for number in range(at, min(at + BATCH, until))])
            now = time.perf_counter()
            if now - reported >= REPORT_EVERY_S:
                reported = now
                self.reporter.progress(store.appended, store.status().dispatchers)
        return (until - first) / (time.perf_counter() - began)

    def catch_up(self, store: Store) -> None:
        """Wait until every view has caught up, and report the progress."""
        deadline = time.monotonic() + CATCH_UP_TIME_MAX
        for view in VIEWS:
            while True:
                self.reporter.progress(store.appended, store.status().dispatchers)
                try:
                    store.wait_for(view, store.appended, timeout=REPORT_EVERY_S)
                    break
                except WaitTimeout:
                    if time.monotonic() > deadline:
                        raise
        self.reporter.progress(store.appended, store.status().dispatchers)

    def kill_one(self, store: Store, first: int) -> None:
        """Kill the process of the index under load; the other processes continue, and it restarts."""
        self.reporter.step("kill -9 of the index's process, while messages are put")
        row = next(row for row in store.status().dispatchers if row.name == "index")
        assert row.pid is not None
        os.kill(row.pid, signal.SIGKILL)
        self.append(store, first, self.records)
        self.catch_up(store)
        again = next(row for row in store.status().dispatchers if row.name == "index")
        self.claim(
            "the killed dispatcher has caught up by itself",
            again.pid != row.pid and bool(again.restart_count) and again.lag_bytes == 0,
            f"process {row.pid} → {again.pid}, restarts {again.restart_count}, lag {again.lag_bytes} bytes",
        )

    def read(self, store: Store) -> None:
        """Read by queue, by tag and by key, and compare with what was put."""
        self.reporter.step("Reading by queue, by tag and by key")
        number = self.records // 3
        expected, queue_id = message(number), number % QUEUE_COUNT
        by_queue = store.get(TOPIC, queue_id, number // QUEUE_COUNT, 1).records
        self.claim(
            "a message by its queue offset",
            [record.body for record in by_queue] == [expected.body],
            f"queue {queue_id}, offset {number // QUEUE_COUNT}",
        )
        by_tag = store.get(TOPIC, 0, 0, 30, tags="paid").records
        self.claim(
            "messages by their tag",
            len(by_tag) == min(30, len(range(0, self.records, QUEUE_COUNT)) // len(TAGS))
            and all(record.tags == "paid" for record in by_tag),
            f"{len(by_tag)} messages tagged paid",
        )
        by_key = store.query(TOPIC, f"order-{number}")
        self.claim("a message by its key", [record.body for record in by_key] == [expected.body], f"key order-{number}")

    def export(self, spark: bool) -> None:
        """Export the log to a Delta table, and count its rows."""
        self.reporter.step("The log as a Delta table, exported with Spark")
        missing = "skipped because --no-spark was given" if not spark else spark_is_missing()
        if missing:
            self.claim("the Delta table holds every record", None, missing)
            return
        export = find_export(DELTA)
        rows = export(self.store, self.lake)
        again = export(self.store, self.lake)
        self.claim(
            "the Delta table holds every record",
            rows.records == self.records,
            f"{rows.records} rows in {rows.files} files, version {rows.table_version}",
        )
        self.claim("a second export adds nothing", again.records == 0, f"{again.records} rows")

    def check(self) -> None:
        """Verify every record, and every view against the log."""
        self.reporter.step("Every record and every view, checked against the log")
        report = check_store(self.store, load_store_settings(self.store).settings)
        self.claim("every record is whole", not report.damage, f"{report.records} records, {report.bytes:,} bytes")
        for view in VIEWS:
            state = report.views[view].state
            self.claim(f"{view} equals the log", state == "equal", state)


def message(number: int) -> reput.Message:
    """Return message *number*: queue, tag, key and body depend on the number."""
    return reput.Message(
        TOPIC,
        f"order {number}".encode(),
        tags=TAGS[number // QUEUE_COUNT % len(TAGS)],
        keys=[f"order-{number}"],
        queue_id=number % QUEUE_COUNT,
    )


def compare_folders(expected: Path, found: Path) -> tuple[list[str], int]:
    """Compare two folders file by file; return the names that differ, and how many files were compared.

    Index files are paired in the order of their names, which are times. A file that holds only zeros counts as absent.
    """
    ours, theirs = data_files(found), data_files(expected)
    if expected.name == "index":
        ours, theirs = numbered(ours), numbered(theirs)
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if ours.get(name) != theirs.get(name)], len(names)


def numbered(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files by their place in the order of their names."""
    return {f"{number}": data for number, data in enumerate(files.values())}


def data_files(folder: Path) -> dict[str, bytes]:
    """Return the files below *folder* that hold anything but zeros, by their path in it."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if data.strip(b"\0"):
                files[str(path.relative_to(folder))] = data
    return files


def spark_is_missing() -> str:
    """Return why Spark cannot run here, an empty string if it can."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "skipped because Java is missing: install a JDK of version 17 or later"
    for module in ("pyspark", "deltalake"):
        if find_spec(module) is None:
            return f'skipped because {module} is missing: pip install "reput[spark]"'
    return ""
