"""Backups and restores that are killed: what is there is whole, and the next one goes on."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backing_up import NO_VIEWS, assert_restored, make_backup, make_restore, put, writing
from command_line import REPUT, run_reput, run_reput_process
from delivering import wait_until
from reput.backup.backup import backup_store
from reput.backup.directory_target import DirectoryTarget
from reput.backup.restore import RestoreRequest, restore_store
from reput.backup.stored import backup_numbers, newest_manifest
from reput.errors import StoreError
from reput.store.disk.files import Files
from small_store import records, small_settings

SMALL = ["mapped_file_size_commit_log=65536", "max_index_num=1000", "max_hash_slot_num=500"]
SET = [word for assignment in SMALL for word in ("--set", assignment)]


class Killed(BaseException):
    """The process ends here."""


class DyingTarget(DirectoryTarget):
    """A target at whose *steps*-th change the process ends."""

    def __init__(self, directory: Path, steps: int) -> None:
        super().__init__(directory)
        self.steps = steps

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Killed

    def begin(self, name):
        self.step()
        writer = super().begin(name)
        commit, write = writer.commit, writer.write

        def dying(call: Callable[..., None]) -> Callable[..., None]:
            def run(*arguments: object) -> None:
                self.step()
                call(*arguments)

            return run

        writer.commit, writer.write = dying(commit), dying(write)
        # A killed process does not clean up.
        writer.abort = lambda: None
        return writer

    def create(self, name, data):
        self.step()
        done = super().create(name, data)
        self.step()
        return done

    def remove(self, name):
        self.step()
        super().remove(name)


@pytest.mark.slow
def test_a_backup_that_is_killed_at_any_step_is_whole_or_not_there(tmp_path):
    """Whatever step a backup dies at, the earlier one is there, and the next one is whole and cleans up."""
    store, first = tmp_path / "store", tmp_path / "first"
    with writing(store) as writer:
        put(writer, 12)
        begun = make_backup(store, first)
        put(writer, 12)
    for steps in range(1000):
        target = tmp_path / "target"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(first, target)
        try:
            backup_store(store, DyingTarget(target, steps), small_settings())
        except Killed:
            numbers = backup_numbers(DirectoryTarget(target))
            if numbers == [1]:
                assert_restored(target, tmp_path, store, begun.log_end)
            else:
                assert numbers == [1, 2]
        else:
            break
        report = make_backup(store, target)
        assert_restored(target, tmp_path, store, report.log_end)
        assert not list(target.rglob("*.draft"))
    assert steps > 10


@pytest.mark.slow
def test_a_restore_that_is_killed_at_any_step_can_be_repeated(tmp_path, monkeypatch):
    """A killed restore leaves no store that could be opened before it is whole; the same command then ends it."""
    store, target, restored = tmp_path / "store", tmp_path / "target", tmp_path / "restored"
    with writing(store) as writer:
        put(writer, 12)
        make_backup(store, target)
    left = 0

    def dying(name: str) -> None:
        call = getattr(Files, name)

        def run(self, *arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(self, *arguments)

        monkeypatch.setattr(Files, name, run)

    for name in ("create", "replace", "move", "make_directory", "force_directory"):
        dying(name)
    for steps in range(1000):
        shutil.rmtree(restored, ignore_errors=True)
        left = steps
        try:
            make_restore(target, restored)
        except Killed:
            left = 1 << 30
            if restored.exists() and any(restored.iterdir()) and not (restored / "commitlog").exists():
                # Opening it would begin an empty store.
                with pytest.raises(StoreError), writing(restored):
                    pass
            if (restored / "restoring" / "ready").exists():
                with pytest.raises(StoreError, match="killed when it was done"):
                    make_restore(target, restored, offset=0)
            make_restore(target, restored)
        else:
            left = 1 << 30
            break
        assert records(restored) == records(store)
        assert not (restored / "restoring").exists()
        with writing(restored) as writer:
            put(writer, 1)
    assert steps > 10


@contextmanager
def loaded(store: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a process put into *store*."""
    command = [REPUT, "send", store, "orders", "--count", "10000000", "--rate", "3000", "--size", "300", *SET]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def kill_after(command: list[object], seconds: float) -> None:
    """Run a command and kill it after a time, unless it ends before."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.processes
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_kills_of_backup_writer_and_restore_under_load_lose_nothing(tmp_path, kills):
    """Each side is killed again and again under load: every backup that is there restores equal to the log up to it."""
    choose = random.Random(kills)
    store, target = tmp_path / "store", tmp_path / "target"
    run_reput("send", store, "orders", "--count", "50", *SET)
    for _ in range(kills):
        with loaded(store) as writer:
            kill_after([REPUT, "backup", store, target, "--follow"], choose.uniform(0.7, 2.5))
            kill_after([REPUT, "backup", store, target], choose.uniform(0.2, 0.8))
            writer.kill()
        # The next writer recovers, and begins an epoch.
        run_reput("send", store, "orders", "--count", "5", *SET)
        report = run_reput_process("backup", store, target, "--format", "json").report()
        restored = tmp_path / "restored"
        shutil.rmtree(restored, ignore_errors=True)
        kill_after([REPUT, "restore", target, restored], choose.uniform(0.2, 2.0))
        if not (restored / "commitlog").exists() or (restored / "restoring").exists():
            assert run_reput_process("restore", target, restored).code == 0
        assert records(restored) == records(store)
        assert report["log_end"] == records(store)[-1].commit_log_offset + records(store)[-1].record_size
        assert run_reput_process("check", restored).code == 0
    numbers = backup_numbers(DirectoryTarget(target))
    for number in numbers if kills > 1 else numbers[:1]:
        restored = tmp_path / f"restored-{number}"
        request = RestoreRequest(str(target), backup=number)
        end = restore_store(DirectoryTarget(target), restored, request, assignments=NO_VIEWS).log_end
        assert records(restored) == [record for record in records(store) if record.commit_log_offset < end]
        shutil.rmtree(restored)


@pytest.mark.processes
def test_following_ends_between_two_backups_at_a_signal(tmp_path):
    """--follow ships what is put within a second or so, and ends at SIGTERM with a whole backup."""
    store, target = tmp_path / "store", tmp_path / "target"
    run_reput("send", store, "orders", "--count", "50", *SET)
    command = [REPUT, "backup", store, target, "--follow", "--metrics", "127.0.0.1:0"]
    begun = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        try:
            address = follower.stderr.readline().partition("metrics=")[2].strip()
            assert "50 records" in follower.stdout.readline()
            run_reput("send", store, "orders", "--count", "7", *SET)
            while "57 records" not in follower.stdout.readline():
                pass
            newest = newest_manifest(DirectoryTarget(target))
            assert newest is not None
            figures = scraped(address)
            assert figures["reput_backup_number"] == newest.number
            assert figures["reput_backup_log_end_offset_bytes"] == newest.log_end
            assert figures["reput_backup_copied_bytes_total"] > newest.log_end
            assert figures["reput_backup_damaged_ranges"] == 0
            # Each look at the store counts, also one that finds nothing new.
            looked_at = figures["reput_backup_timestamp_seconds"]
            assert looked_at >= begun
            wait_until(lambda: scraped(address)["reput_backup_timestamp_seconds"] > looked_at)
            follower.terminate()
            assert follower.wait(60) == 0
        finally:
            follower.kill()
    assert run_reput("restore", target, tmp_path / "restored").code == 0
    assert len(records(tmp_path / "restored")) == 57


def scraped(address: str) -> dict[str, float]:
    """Return the samples of a scrape by name."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.slow
def test_metrics_of_a_backup_need_one_that_goes_on(tmp_path):
    """Of a backup that ends, the exit code tells; and beyond this machine, metrics must be asked for."""
    run_reput("send", tmp_path / "store", "orders", "--count", "1", *SET)
    backup = ("backup", tmp_path / "store", tmp_path / "target", "--metrics")
    assert "metrics need a backup that goes on" in run_reput(*backup, "127.0.0.1:0").stderr
    ended = run_reput(*backup, "0.0.0.0:0", "--follow")
    assert (ended.code, "anybody could read the metrics from there" in ended.stderr) == (2, True)
    assert not (tmp_path / "target").exists()
