"""Two versions of reput after one another on one store: upgrade, downgrade and upgrade again, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from archives import unpack_tar
from command_line import REPUT
from delivering import wait_until
from small_store import records
from source_tree import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.long]

# The first version that stores are promised to be taken over from, by its commit: nothing was released before it.
OLDER = "f338f697288c9923c6e3cbeef48595d6fc02e4ac"
SET = ["mapped_file_size_commit_log=65536", "max_index_num=1000", "max_hash_slot_num=500"]
SETTINGS = [word for assignment in SET for word in ("--set", assignment)]


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """The source tree of an older version; only a full clone has it."""
    folder = tmp_path_factory.mktemp("older")
    packed = folder / "source.tar"
    made = subprocess.run(
        ["git", "-C", ROOT, "archive", "-o", packed, OLDER, "core", "hooks", "plugins"], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"this clone does not have the older version: commit={OLDER}")
    unpack_tar(packed, folder)
    return folder


def run_older(older: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb of the older version: its source comes before the installed one, in its dispatchers as well."""
    path = os.pathsep.join(str(older / part) for part in ("core", "hooks", "plugins"))
    program = (
        f"import reput; assert reput.__file__.startswith({str(older)!r}); from reput.cli import main; exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "REPUT_KERNEL": "off"},
        capture_output=True,
        text=True,
    )


def run_newer(older: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb of this version."""
    return subprocess.run([REPUT, *map(str, words)], capture_output=True, text=True)


def test_versions_take_turns_at_one_store(older, tmp_path):
    """After each change of the version all messages and offsets are there, and both versions find nothing wrong."""
    store = tmp_path / "store"
    for turn, run in enumerate((run_older, run_newer, run_older, run_newer)):
        send = run(older, "send", store, "orders", "--count", "50", "--keys", f"turn{turn}", *SETTINGS)
        assert send.returncode == 0, send.stderr
        consumed = run(older, "consume", store, "orders", "--group", "billing", "--count", "30", "--format", "json")
        assert [json.loads(line)["queue_offset"] for line in consumed.stdout.splitlines()] == list(
            range(turn * 30, turn * 30 + 30)
        )
        for check in (run_older, run_newer):
            checked = check(older, "check", store)
            assert checked.returncode == 0, checked.stdout + checked.stderr
        assert [record.queue_offset for record in records(store)] == list(range(50 * (turn + 1)))
        found = run(older, "query", store, "orders", "turn0", "--count", "100", "--format", "json")
        assert len(found.stdout.splitlines()) == 50


def has_records(store: Path, count: int) -> bool:
    """Tell whether a store that is being written has so many records by now."""
    return any((store / "commitlog").glob("0*")) and len(records(store, unclean=True)) >= count


def test_a_version_that_was_killed_is_followed_by_the_other(older, tmp_path):
    """A kill of either version is recovered by the other."""
    store = tmp_path / "store"
    for run, other in ((run_older, run_newer), (run_newer, run_older)):
        words = ["send", store, "orders", "--count", "1000000", "--rate", "2000", *SETTINGS]
        path = os.pathsep.join(str(older / part) for part in ("core", "hooks", "plugins"))
        environment = {**os.environ, "REPUT_KERNEL": "off"} | ({"PYTHONPATH": path} if run is run_older else {})
        reached = 200 + (len(records(store)) if store.exists() else 0)
        program = "from reput.cli import main; exit(main())"
        writer = subprocess.Popen([sys.executable, "-c", program, *map(str, words)], env=environment)
        try:
            wait_until(partial(has_records, store, reached))
        finally:
            writer.kill()
            writer.wait()
        assert other(older, "send", store, "orders", "--count", "5").returncode == 0
        assert other(older, "check", store).returncode == 0
        assert [record.queue_offset for record in records(store)] == list(range(len(records(store))))
