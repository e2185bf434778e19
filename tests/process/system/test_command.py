"""Fresh processes of the group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reput.process.system.command import role_command


def test_a_fresh_process_is_isolated_and_sees_the_same_plugins(tmp_path):
    """Neither the current folder nor the environment affects imports; additional entries come last."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('shadowed')")
    command = role_command("nonsense", path=[*sys.path, str(tmp_path), ""])
    assert command[:2] == [sys.executable, "-I"]
    assert str(tmp_path) in command[3].split(":")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stderr == "unknown role: role=nonsense\n"


@pytest.mark.processes
def test_the_supervisor_loads_no_plugin_and_nothing_heavy():
    """Every dispatcher inherits the modules that it loads."""
    heavy = ["numpy", "asyncio", "multiprocessing", "importlib.metadata", "typer", "reput_plugins", "tomllib"]
    code = f"import sys, reput.process.supervisor.supervisor; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
