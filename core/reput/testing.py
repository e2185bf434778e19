"""Fixtures for tests of programs that use reput. pytest finds them where reput is installed.

def test_an_order_is_kept(reput_store):
    stored = reput_store.put(reput.Message("orders", b"one"))
    reput_store.wait_for("consume_queue", stored.next_commit_log_offset, timeout=5)
    assert [record.body for record in reput_store.get("orders", 0, 0).records] == [b"one"]

def test_an_order_is_sent(reput_broker):
    with reput.connect(reput_broker.name_server) as client:
        client.put(reput.Message("orders", b"one"))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import reput

__all__ = ["ServedStore", "reput_broker", "reput_broker_options", "reput_store", "reput_store_options"]

READY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
# Segments have one MiB, so that a small test crosses their boundaries.
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 10_000, "max_index_num": 40_000}


@dataclass(frozen=True)
class ServedStore:
    """A store that a `reput serve` of its own serves, on ports that were free.

    Attributes:
        store: its directory; `reput.connect` takes it, too.
        broker, name_server: addresses, ``host:port``.
        pid: of the process that keeps the broker running.
    """

    store: Path
    broker: str
    name_server: str
    pid: int


@pytest.fixture
def reput_store_options() -> dict[str, Any]:
    """Arguments of `reput.open` for the fixture `reput_store`. Override it in a test module or ``conftest.py``.

    Segments have one MiB, so that a small test crosses their boundaries.
    """
    return dict(SMALL)


@pytest.fixture
def reput_store(tmp_path: Path, reput_store_options: dict[str, Any]) -> Iterator[reput.Store]:
    """An open, empty store in its own directory, with running dispatchers; it is removed afterwards."""
    # Imported here: tests of other things pay nothing for this plugin.
    import shutil

    import reput

    directory = tmp_path / "reput_store"
    try:
        with reput.open(directory, **reput_store_options) as store:
            yield store
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def reput_broker_options() -> dict[str, Any]:
    """Settings of the store of `reput_broker`. Override it in a test module or ``conftest.py``."""
    return dict(SMALL)


@pytest.fixture
def reput_broker(tmp_path: Path, reput_broker_options: dict[str, Any]) -> Iterator[ServedStore]:
    """A broker with its name server, on free ports of this machine, with an empty store.

    RocketMQ's own clients connect to it, too. All of it is removed afterwards.
    """
    import contextlib
    import os
    import selectors
    import shutil
    import subprocess
    import sys

    directory = tmp_path / "reput_broker"
    said = tmp_path / "reput_broker.log"
    command = [
        sys.executable,
        "-c",
        "import sys; from reput.cli import main; sys.exit(main())",
        "serve",
        str(directory),
    ]
    command += ["--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0"]
    for name, value in reput_broker_options.items():
        command += ["--set", f"{name}={value}"]
    with (
        said.open("wb") as log,
        # In a session of its own: Ctrl-C ends the tests, and the fixture ends it.
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True) as process,
    ):
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline().decode() if selector.select(READY_TIMEOUT_S) else ""
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "name_server" not in words:
                pytest.fail(f"the broker is not ready: {line!r}\n{said.read_text(errors='replace')}")
            yield ServedStore(directory, words["broker"], words["name_server"], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
            shutil.rmtree(directory, ignore_errors=True)
