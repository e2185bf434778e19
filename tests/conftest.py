"""For all tests: the golden stores, and skipping tests without Spark."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from golden_sets import (
    copy_writable,
    make_read_only,
    read_about,
    read_lines,
    tree_digest,
    unpack,
    write_broker_properties,
)
from spark_classes import archive_spark_classes

# A shell may ignore SIGINT in background jobs, and every command started by a test would inherit that. Some tests press
# Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is not a failure: examples have no time limit. They are the same in each run, so that only a change can
# make a test fail; the long tests look for new ones (`--hypothesis-profile=search`).
settings.register_profile("reput", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("reput")


if sys.dont_write_bytecode:
    # Otherwise each of the thousands of started commands compiles reput again. The source tree stays clean.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = (
        f"{tempfile.gettempdir()}/reput-tests-pycache-{os.getuid()}"
    )
    sys.dont_write_bytecode = False

FIRST_WORKER = "gw0"
# Objects before a young collection, and younger collections before an older one.
GARBAGE_THRESHOLDS = (50_000, 20, 20)
MEMORY = Path("/dev/shm")
# Several times what the tests need at once; directories of passed tests are removed.
MEMORY_FREE_MIN = 6 << 30


def memory_holds_the_tests() -> bool:
    """Whether a file system in memory has enough space for all tests, and lets their programs run."""
    try:
        status = os.statvfs(MEMORY)
        (available,) = re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return False
    free = min(status.f_bavail * status.f_frsize, int(available) << 10)
    return free >= MEMORY_FREE_MIN and not status.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


def pytest_configure(config: pytest.Config) -> None:
    """Put stores of tests into memory if there is enough, unless a place is given; compile the tests once.

    Waiting for a disk took half of the time, and a full or slow disk made tests fail. Power cuts and failing disks are
    tested with simulated files, wherever these lie.
    """
    if config.option.basetemp is None and "PYTEST_DEBUG_TEMPROOT" not in os.environ and memory_holds_the_tests():
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
    if not hasattr(config, "workerinput") and not is_compiled():
        config.pluginmanager.register(OneWorkerCompiles())


HAS_SPARK = all(importlib.util.find_spec(name) for name in ("pyspark", "deltalake")) and shutil.which("java")


# A test with one of these marks, or in one of these folders, is not quick.
NOT_QUICK = ("slow", "long", "processes", "spark", "java")
NOT_QUICK_FOLDERS = (
    "tests/access/",
    "tests/interop/",
    "tests/process/contract/",
    "tests/replication/",
    "tests/simulation/",
    "tests/spark/",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what has no quick test if these alone are asked for: some of it imports much."""
    if config.option.markexpr == "quick" and f"{collection_path}/".endswith(NOT_QUICK_FOLDERS):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and skip the Spark tests on a machine without Spark."""
    for item in items:
        if not (item.nodeid.startswith(NOT_QUICK_FOLDERS) or any(map(item.get_closest_marker, NOT_QUICK))):
            item.add_marker(pytest.mark.quick)
        if not HAS_SPARK and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.skip(reason="needs Java and the extra spark"))


# One process runs the tests of each of these, with `--dist loadscope`: it starts the only Spark, builds the only wheel,
# parses the source once, and prepares the examples of the verbs once.
SCOPES = ("tests/spark/", "tests/packaging/", "tests/tree/", "tests/cli/test_main.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, hand out the tests of `SCOPES` together, as the first, and all others one by one."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((scope for scope in SCOPES if nodeid.startswith(scope)), nodeid)

    return Scheduling(config, log)


class OneWorkerCompiles:
    """Lets the first worker collect alone if nothing is compiled yet, so that the others find what it has compiled.

    A new environment has no bytecode: compiling all that the tests import takes three times as long as collecting them,
    and workers that collect at the same time would all compile the same modules. The workers wait for a lock that the
    controller holds; the system releases it if the controller dies.
    """

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        fcntl.flock(self.file, fcntl.LOCK_EX)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if node.gateway.id != FIRST_WORKER:
            node.workerinput["collect_after"] = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self.file.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self) -> None:
        self.file.close()


def is_compiled() -> bool:
    """Whether pytest has compiled this folder's tests with this Python."""
    folder = Path(importlib.util.cache_from_source(__file__)).parent
    return any(folder.glob(f"test_*.{sys.implementation.cache_tag}-pytest-*.pyc"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Wait for the first worker if it compiles the tests."""
    collect_after = getattr(session.config, "workerinput", {}).get("collect_after")
    if collect_after is not None:
        with open(collect_after) as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later garbage collection; they stay until the end.

    Tests that make many objects (the explorer of interleavings, Hypothesis) spend up to half of their time in
    collections, so these are rarer than by default. Tests about what is left over collect themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


@pytest.fixture(scope="session")
def spark_classes() -> None:
    """For tests that start Spark's JVM: it starts from an archive of its classes, made by the first of them."""
    if HAS_SPARK:
        archive_spark_classes()


@pytest.fixture
def memory_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if possible, for simulated disks and stores that need not survive a power cut."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="reput-tests-", dir=memory) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def golden_unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return where a golden set is unpacked for the whole session. Tests use `golden` or `golden_read_only`."""
    root = tmp_path_factory.mktemp("golden")
    unpacked: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = unpack(name, root)
            make_read_only(unpacked[name])
        return unpacked[name]

    return folder_of


@pytest.fixture
def golden(golden_unpacked: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a fresh, writable copy of a golden set: ``golden("basic-5.3") / "store"`` is a store directory."""

    def copy(name: str) -> Path:
        root = tmp_path / "golden"
        number = len(list(root.glob("*"))) if root.exists() else 0
        return copy_writable(golden_unpacked(name), root / str(number) / name)

    return copy


@pytest.fixture
def golden_read_only(golden_unpacked: Callable[[str], Path]) -> Iterator[Callable[[str], Path]]:
    """Return a golden set that all tests share; a test that changes a byte of it fails."""
    before: dict[Path, dict[str, str]] = {}

    def folder_of(name: str) -> Path:
        folder = golden_unpacked(name)
        if folder not in before:
            before[folder] = tree_digest(folder)
        return folder

    yield folder_of
    for folder, digest in before.items():
        assert tree_digest(folder) == digest


@pytest.fixture
def golden_about(golden_unpacked: Callable[[str], Path]) -> Callable[[str], dict[str, Any]]:
    """Return the content of a set's ``about.json``."""
    return lambda name: read_about(golden_unpacked(name))


@pytest.fixture
def golden_listing(golden_unpacked: Callable[[str], Path]) -> Callable[[str], list[dict[str, Any]]]:
    """Return every record of a set as RocketMQ's own decoder read it; ``"crash-5.3/soft-before"`` names a part."""

    def listing(name: str) -> list[dict[str, Any]]:
        set_name, _, part = name.partition("/")
        folder = golden_unpacked(set_name)
        own = folder / part / "listing.jsonl"
        if own.exists():
            return read_lines(own)
        return read_lines(folder / "listing.jsonl")[: read_about(folder)["parts"][part]["listing"]["records"]]

    return listing


@pytest.fixture
def golden_queries(golden_unpacked: Callable[[str], Path]) -> Callable[..., list[dict[str, Any]]]:
    """Return the questions of a set, or of a part of it, with the real store's answers; *question* picks one kind."""

    def queries(name: str, question: str | None = None) -> list[dict[str, Any]]:
        set_name, _, part = name.partition("/")
        lines = read_lines(golden_unpacked(set_name) / part / "queries.jsonl")
        return [line for line in lines if question in (None, line["q"])]

    return queries


@pytest.fixture
def broker_properties(golden_unpacked: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a file with the settings of the broker that wrote a set, in the broker's own form."""

    def write(name: str) -> Path:
        return write_broker_properties(golden_unpacked(name), tmp_path / f"{name}.properties")

    return write
