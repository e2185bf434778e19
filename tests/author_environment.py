"""AuthorEnvironment: a plugin author's virtual environment, with everything needed already installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["AuthorEnvironment"]

# What the author types → what runs here. Nothing is downloaded: a project needs the same packages as the tests.
COMMANDS = {
    "pip": 'verb=$1; shift; set -- "$verb" -q --no-index --no-build-isolation "$@"\n'
    'exec "{python}" -m pip --disable-pip-version-check "$@"',
    "reput": 'exec "{python}" -c "import sys; from reput.cli import main; sys.exit(main())" "$@"',
    "pytest": 'exec "{python}" -m pytest -p no:cacheprovider "$@"',
    "mypy": 'exec "{python}" -m mypy --cache-dir={cache} "$@"',
}


class AuthorEnvironment:
    """The environment, in *folder*. Commands run in *directory*, which is empty at first."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "work-place"
        self.directory.mkdir()
        venv.create(folder / "environment", with_pip=False, symlinks=True)
        self.commands = folder / "environment" / "bin"
        self.python = self.commands / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = folder / "environment" / "lib" / version / "site-packages"
        # addsitedir also finds packages that are installed there in editable mode.
        outer = sysconfig.get_path("purelib")
        (site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
        for name, command in COMMANDS.items():
            path = self.commands / name
            path.write_text(f"#!/bin/sh\n{command.format(python=self.python, cache=folder / 'mypy')}\n")
            path.chmod(0o755)
        self.variables = {
            **os.environ,
            "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def run(self, command: str, *, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def succeed(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout
