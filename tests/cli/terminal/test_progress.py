"""Progress bars on stderr."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

from reput.cli.terminal import progress
from reput.cli.terminal.progress import Bar, progress_bar


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_where_nobody_looks_nothing_is_shown():
    """No byte on stderr, and rich is not imported."""
    code = (
        "import sys\n"
        "from reput.cli.terminal.progress import progress_bar\n"
        "with progress_bar('check') as update:\n"
        "    update(50, 100)\n"
        "sys.exit('rich' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_short_work_has_no_bar(monkeypatch):
    """It would only flicker."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    seconds = 5.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: seconds))
    with progress_bar("check") as update:
        update(50, 100)
        seconds += 0.99
        update(100, 100)
    assert terminal.getvalue() == ""


def test_long_work_has_a_bar_with_rate_and_time_left(monkeypatch):
    """It is removed at the end."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    bar = Bar("check")
    bar.update(500_000, 2_000_000)
    assert bar.shown is not None
    bar.update(1_000_000, 2_000_000)
    bar.shown.refresh()
    bar.close()
    text = terminal.getvalue()
    assert "check" in text
    assert "1.0/2.0 MB" in text
