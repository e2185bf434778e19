"""The fixtures that reput provides for a program's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reput

PROGRAM = """
import pytest, reput

@pytest.fixture
def reput_store_options():
    return {"dispatchers": ["consume_queue"], "mapped_file_size_commit_log": 65536}

def test_it(reput_store):
    status = reput_store.status()
    assert [row.name for row in status.dispatchers] == ["consume_queue"]
    pids = [row.pid for row in status.dispatchers]
    with open("facts", "w") as facts:
        print(reput_store.directory, *pids, file=facts)
    assert reput_store._engine.writer.segment_size == 65536
"""


@pytest.mark.slow
def test_a_test_gets_an_empty_store_that_runs(reput_store):
    """Like the module's own example."""
    stored = reput_store.put(reput.Message("orders", b"one"))
    reput_store.wait_for("consume_queue", stored.next_commit_log_offset, timeout=60)
    assert [record.body for record in reput_store.get("orders", 0, 0).records] == [b"one"]


@pytest.mark.processes
def test_a_test_gets_a_broker(reput_broker):
    """Ready for clients, by address and by the store's path."""
    for target in (reput_broker.name_server, reput_broker.store):
        with reput.connect(target) as client:
            client.put(reput.Message("orders", b"one"))


@pytest.mark.processes
def test_everything_is_gone_afterwards_and_options_can_be_others(tmp_path):
    """In a third-party project, without any set-up for the fixture."""
    (tmp_path / "test_program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    directory, *pids = (tmp_path / "facts").read_text().split()
    assert not Path(directory).exists()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.mark.slow
def test_a_test_that_does_not_ask_pays_nothing():
    """The plugin is loaded in every run of pytest on the machine; it loads no other module of reput."""
    said = subprocess.run(
        [sys.executable, "-c", "import sys, reput.testing; print('reput.embedded.store' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "False"
