"""`reput demo`: its output and its exit code."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from command_line import run_reput, run_reput_process
from reput.cli import main
from reput.cli.terminal.options import OutputFormat
from reput.cli.verbs import demo
from reput.cli.verbs.demo import Shown, ending, scratch_folder
from reput.demo.demo import Check, DemoReport
from reput.errors import ConfigError
from reput.process.control.dispatcher_row import DispatcherRow


@pytest.mark.slow
@pytest.mark.processes
def test_every_claim_is_shown_and_holds(tmp_path):
    """Without Spark its last line says that this was requested."""
    ended = run_reput_process("demo", "--directory", tmp_path / "demo", "--records", 4000, "--no-spark")
    assert ended.code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert not [line for line in lines if line.startswith("  FAILED")]
    assert [line for line in lines if line.startswith("  ok ")]
    assert "--no-spark" in lines[-1]
    assert run_reput("status", tmp_path / "demo" / "store").code == 0


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run a demo with these claims, and return exit code and output."""

    def run_with(*checks: Check, options: tuple[str, ...] = ()) -> tuple[int, str]:
        def run_demo(directory: Path, reporter: Shown, *, records: int, spark: bool) -> DemoReport:
            reporter.step(f"{records} records, spark {spark}")
            for check in checks:
                reporter.result(check)
            return DemoReport(directory, list(checks))

        monkeypatch.setattr("reput.demo.demo.run_demo", run_demo)
        code = main(["demo", "--directory", str(tmp_path / "demo"), *options])
        return code, capsys.readouterr().out

    return run_with


def test_claims_steps_and_a_way_on_are_printed(run, tmp_path):
    """Skipped parts come last."""
    code, out = run(Check("a", True, "x=1"), Check("lake", None, "Java is missing"), options=("--records", "2000"))
    assert code == 0
    store = tmp_path / "demo" / "store"
    assert out == (
        "\n2000 records, spark True\n"
        "  ok       a: x=1\n"
        "  skipped  lake: Java is missing\n"
        "\n"
        "1 of 1 claims held. Continue with the store:\n"
        f"  reput status {store}\n"
        f"  reput dump {store} --count 5\n"
        f"  reput query {store} orders order-7\n"
        "skipped: lake: Java is missing\n"
    )


def test_a_claim_that_does_not_hold_is_the_answer_no(run):
    """Exit code 1."""
    code, out = run(Check("a", False, "x=2"), Check("b", True, ""), options=("--no-spark",))
    assert code == 1
    assert "  FAILED   a: x=2\n" in out
    assert "1 of 2 claims held" in out
    assert "spark False" in out


def test_claims_are_json_rows(run):
    """There is no other output."""
    code, out = run(Check("a", None, "x"), options=("--format", "json"))
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [{"name": "a", "held": None, "detail": "x"}]


def test_the_folder_has_to_be_empty(tmp_path, capsys):
    """Existing files are never touched."""
    (tmp_path / "holiday.txt").write_text("photos")
    assert main(["demo", "--directory", str(tmp_path)]) == 2
    assert f"directory={tmp_path}" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        scratch_folder(tmp_path / "holiday.txt")
    assert scratch_folder(tmp_path / "new" / "folder").is_dir()


def test_without_a_folder_a_temporary_one_is_made(monkeypatch, tmp_path):
    """It stays, for inspection."""
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    assert scratch_folder(None) == tmp_path / "reput-demo-"


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def dispatcher(name: str, lag_bytes: int) -> DispatcherRow:
    """Return a row of the group's status."""
    known = dict.fromkeys(DispatcherRow.__struct_fields__)
    return DispatcherRow(**known | {"name": name, "lag_bytes": lag_bytes, "state": "RUNNING"})


def test_progress_is_shown_live_to_people(monkeypatch, capsys):
    """On stderr, a row for each dispatcher; without a terminal, nothing."""
    shown = Shown(OutputFormat.TEXT)
    shown.progress(1000, [dispatcher("index", 40)])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    shown.progress(1000, [dispatcher("index", 40)])
    shown.progress(2000, [dispatcher("index", 0)])
    shown.close()
    assert "1,000 bytes appended" in terminal.getvalue()
    assert "2,000 bytes appended" in terminal.getvalue()
    assert "index" in terminal.getvalue()
    assert shown.live is None


def test_the_summary_counts_what_was_tried():
    """A skipped part is not a failure."""
    report = DemoReport(Path("/d"), [Check("a", True, ""), Check("b", None, "no Java")])
    assert "1 of 1 claims held" in ending(report)
    assert ending(report).splitlines()[-1] == "skipped: b: no Java"
