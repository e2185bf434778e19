"""The life of the distribution beside an open store: installed, upgraded, broken, repaired, removed by pip."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import reput

PROJECT = Path(__file__).parents[1]
DISTRIBUTION = "reput-topic-count"
TIMEOUT = 60.0

NEWER_INTERFACE = """@hookimpl
def reput_describe_dispatcher():
    from reput_hooks import DispatcherDescription
    return DispatcherDescription(api_version=2)


@hookimpl
def reput_create"""


def run(*command: object) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*arguments: object) -> None:
    """Run pip in this environment; it downloads nothing."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments)


def reput_command(*arguments: object) -> str:
    """Run a `reput` command of this environment."""
    return run(Path(sys.executable).with_name("reput"), *arguments)


def build(folder: Path, version: str, *changes: tuple[str, str]) -> Path:
    """Return a wheel of the project as *version*, with the first text of each of *changes* replaced by the second."""
    project = folder / version
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("tests", "dist", "__pycache__", ".*"))
    source = project / "src" / "reput_topic_count" / "__init__.py"
    for path, old, new in [
        (project / "pyproject.toml", 'version = "1.0.0"', f'version = "{version}"'),
        *((source, old, new) for old, new in changes),
    ]:
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder / f"wheel-{version}", project)
    (wheel,) = (folder / f"wheel-{version}").iterdir()
    return wheel


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Return a function that installs a version of the distribution; afterwards the original one is restored."""

    def install(version: str, *changes: tuple[str, str]) -> None:
        wheel = build(tmp_path / "builds", version, *changes)
        pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel)

    yield install
    install_again = build(tmp_path / "at-the-end", "1.0.0")
    pip("install", "--no-deps", "--no-index", "--force-reinstall", install_again)


class Life:
    """A store that stays open, and its group."""

    def __init__(self, path: Path, store: reput.Store) -> None:
        self.path = path
        self.store = store
        self.count = 0

    def row(self, name: str) -> Any:
        """Return the status of a dispatcher, None if it is not in the group."""
        return next((row for row in self.store.status().dispatchers if row.name == name), None)

    def put(self) -> int:
        """Put ten messages; the consume queue must take them in, whatever happens to other dispatchers."""
        for _ in range(10):
            end = self.store.put(reput.Message("orders", b"message %d" % self.count)).next_commit_log_offset
            self.count += 1
        self.store.wait_for("consume_queue", end, timeout=TIMEOUT)
        assert self.row("consume_queue").restart_count == 0
        return end

    def look_again(self) -> None:
        """Make the supervisor check the installed plugins."""
        _, supervisor, *_ = self.store.pids()
        os.kill(supervisor, signal.SIGHUP)

    def wait_until(self, holds: Callable[[Any], bool]) -> None:
        """Wait until the status of topic_count is as expected."""
        deadline = time.monotonic() + TIMEOUT
        pause = threading.Event()
        while not ((row := self.row("topic_count")) is not None and holds(row)):
            assert time.monotonic() < deadline, row
            pause.wait(0.02)

    def await_version(self, version: str) -> None:
        """Wait until topic_count runs in this version."""
        self.wait_until(lambda row: (row.version, row.state) == (version, "RUNNING"))

    def await_broken(self, error: str) -> None:
        """Wait until topic_count cannot run, for this reason."""
        self.wait_until(lambda row: row.state == "BROKEN" and error in row.error)

    def require_counted(self) -> None:
        """Wait until every message is counted, exactly once."""
        self.store.wait_for("topic_count", self.put(), timeout=TIMEOUT)
        reput_command("dispatcher", "pause", self.path, "topic_count")
        self.wait_until(lambda row: row.state == "PAUSED")
        file = self.path / "reput" / "views" / "topic_count" / "topic_count.json"
        assert msgspec.json.decode(file.read_bytes())["count"] == {"orders": self.count}
        reput_command("dispatcher", "resume", self.path, "topic_count")


def test_the_group_goes_on_while_the_plugin_comes_changes_breaks_and_goes(install, tmp_path):
    """The store is not reopened, no other dispatcher is restarted, and every message is counted once."""
    pip("uninstall", "-y", DISTRIBUTION)
    path = tmp_path / "store"
    with reput.open(path, dispatchers=["consume_queue"]) as store:
        life = Life(path, store)
        life.put()
        builder = life.row("consume_queue").pid

        install("1.0.0")
        reput_command("dispatcher", "attach", path, "topic_count")
        life.await_version("1.0.0")
        life.require_counted()

        install("1.1.0", ('"""Count the batch."""', '"""Count the batch, better."""'))
        life.look_again()
        life.await_version("1.1.0")
        life.require_counted()

        # A running process continues with its imported code; the next one finds the installed code.
        install("1.2.0", ("import msgspec\n", "import msgspec\nimport no_such_module\n"))
        life.look_again()
        life.store.wait_for("topic_count", life.put(), timeout=TIMEOUT)
        life.await_version("1.1.0")
        reput_command("dispatcher", "restart", path, "topic_count")
        life.await_broken("no_such_module")
        life.put()

        install("2.0.0", ("@hookimpl\ndef reput_create", NEWER_INTERFACE))
        life.look_again()
        life.await_broken("written for another version of reput_hooks: dispatcher=topic_count api_version=2 expected=1")
        life.put()

        install("2.0.1")
        life.look_again()
        life.await_version("2.0.1")
        life.require_counted()

        reput_command("dispatcher", "detach", path, "topic_count")
        pip("uninstall", "-y", DISTRIBUTION)
        life.put()
        assert life.row("topic_count") is None
        lines = reput_command("plugin", "list", "--format", "json").splitlines()
        installed = {row["name"]: row for row in map(msgspec.json.decode, lines)}
        assert "topic_count" not in installed
        # An editable installation may have changed at any time, and is restarted.
        assert life.row("consume_queue").pid == builder or installed["consume_queue"]["editable"]
        assert len(store.get("orders", 0, 0, count_max=1000)) == life.count
