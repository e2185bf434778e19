"""`reput doctor`: each finding, its advice, and that nothing is changed."""

from __future__ import annotations

import json
import os
import resource
import shutil

import pytest

from reput.cli import main
from reput.cli.target import findings
from reput.cli.target.findings import Finding, machine_findings, store_findings
from reput.errors import RingError
from reput.process.plugin.catalogue import CatalogueEntry
from reput.store.state.store_lock import LockState, StoreLock


def test_every_warning_and_problem_comes_with_an_advice():
    """Findings without a problem need none; names are unique."""
    found = list(machine_findings())
    assert len({finding.name for finding in found}) == len(found)
    for finding in found:
        assert bool(finding.advice) == (finding.state != "ok"), finding


def test_a_store_is_looked_at_without_changing_it(golden_read_only, capsys):
    """The fixture compares checksums."""
    main(["doctor", str(golden_read_only("basic-4.9") / "store"), "--format", "json"])
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["writer"]["finding"] == "no program has it open; it was closed cleanly"
    assert "segment_size=77824" in rows["disk"]["finding"]
    assert rows["file system"]["finding"].rpartition("type=")[2] != "unknown"
    assert set(rows["python"]) == {"name", "state", "finding", "advice"}


def test_only_problems_make_exit_code_1(monkeypatch, capsys):
    """Warnings are for people to judge."""
    monkeypatch.setattr(
        findings, "machine_findings", lambda: [Finding("a", "ok", "x=1"), Finding("b", "warning", "y", "Z.")]
    )
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "ok       a: x=1\nwarning  b: y\n         Z.\n"
    monkeypatch.setattr(findings, "machine_findings", lambda: [Finding("c", "problem", "y", "Z.")])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "PROBLEM  c: y\n         Z.\n"


def test_a_processor_that_the_ring_does_not_cover_is_a_problem(monkeypatch):
    """The advice is inline mode."""

    def refuse() -> None:
        raise RingError("not proved here: machine=m68k", 'open the store with mode="inline"')

    monkeypatch.setattr("reput.ring.word_access", refuse)
    assert findings.processor() == Finding(
        "processor", "problem", "not proved here: machine=m68k", 'open the store with mode="inline"'
    )


@pytest.mark.parametrize(
    ("release", "state"), [("5.0.9-1", "problem"), ("5.1.0", "ok"), ("6.18.4-fc", "ok"), ("4.19", "problem")]
)
def test_an_old_kernel_is_a_problem(release, state, monkeypatch):
    """It cannot seal shared memory against other writers."""
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((uname[0], uname[1], release, uname[3], uname[4])))
    assert findings.shared_memory().state == state


@pytest.mark.parametrize(("soft", "state"), [(1024, "warning"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_few_open_files_are_a_warning(soft, state, monkeypatch):
    """The advice has the command that raises the limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    assert findings.open_files().state == state


def test_a_plain_crcmod_is_a_warning(monkeypatch):
    """It works, but slowly."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert findings.checksums().state == "warning"
    assert [finding.state for finding in findings.packages()] == ["warning", "warning"]


@pytest.mark.parametrize(
    ("printed", "state", "finding"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok", "version=17"),
        ('openjdk version "21" 2023-09-19', "ok", "version=21"),
        ('java version "1.8.0_402"', "warning", "too old"),
        ("no Java here", "warning", "version=None"),
    ],
)
def test_java_has_to_be_new_enough_for_spark(printed, state, finding, tmp_path, monkeypatch):
    """By its own version output."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = findings.java()
    assert found.state == state
    assert finding in found.finding


def test_without_java_only_spark_is_missing(monkeypatch, tmp_path):
    """So it is not a problem."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert findings.java().state == "warning"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not answer" in findings.java().finding


def test_a_dispatcher_that_cannot_be_loaded_is_a_problem(monkeypatch):
    """The last line of its traceback has the reason."""
    entry = CatalogueEntry("lake", "lake", "no_such_module", "some-plugin", "1.2", "/somewhere", editable=True)
    monkeypatch.setattr("reput.process.plugin.catalogue.installed_dispatchers", lambda: {"lake": entry})
    [found] = findings.plugins()
    assert found.state == "problem"
    assert found.finding == "ModuleNotFoundError: No module named 'no_such_module' distribution=some-plugin version=1.2"


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "warning"), ("tmpfs", "warning"), ("ext4", "ok")])
def test_some_file_systems_are_no_place_for_a_store(kind, state, monkeypatch, tmp_path):
    """Network file systems break locks and mappings; files in memory do not last."""
    monkeypatch.setattr(findings, "file_system_type", lambda path: kind)
    assert findings.file_system(tmp_path).state == state


@pytest.mark.parametrize(("used", "free", "state"), [(10, 90, "ok"), (91, 9, "warning")])
def test_a_full_disk_is_a_warning(used, free, state, monkeypatch, golden_read_only):
    """Before it becomes an error."""
    usage = shutil._ntuple_diskusage(100 << 20, used << 20, free << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert findings.free_space(golden_read_only("basic-4.9") / "store").state == state


def test_whoever_holds_the_store_is_named(golden):
    """By process id; a store that was not closed is a warning."""
    store = golden("basic-4.9") / "store"
    (store / "abort").touch()
    assert findings.holder(store).state == "warning"
    lock = StoreLock(store)
    (store / "reput").mkdir()
    try:
        assert findings.holder(store).finding != "no program has it open; it was closed cleanly"
    finally:
        lock.close()


def test_a_holder_that_cannot_be_seen_is_not_taken_for_none(golden, monkeypatch):
    """For example one in another container, or of a store whose lock this user may not open."""
    store = golden("basic-4.9") / "store"
    for state, found in ((LockState(True, None), "held by pid=unknown"), (LockState(None, None), "may not see")):
        monkeypatch.setattr(StoreLock, "look", lambda *_, state=state: state)
        assert found in findings.holder(store).finding


def test_a_directory_that_is_no_store_is_refused(tmp_path, capsys):
    """With exit code 3, and no output on stdout."""
    assert main(["doctor", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "missing=commitlog" in err


def test_a_store_has_five_findings(golden_read_only):
    """Its place, the free space, write permission, the writer, and whether its times are ahead."""
    found = list(store_findings(golden_read_only("basic-5.3") / "store"))
    assert [finding.name for finding in found] == ["file system", "disk", "permissions", "writer", "store times"]
