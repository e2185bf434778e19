"""The Go client: the program in ``go/``, built once, outside of the repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from interop.clients.java_clients import AT_A_TIME, Outcome, outcomes_of

__all__ = ["run_go"]

SOURCES = Path(__file__).parents[1] / "go"
BUILD_SECONDS_MAX = 600
# What Go says when it cannot reach a proxy for its modules, as opposed to when it cannot compile.
UNREACHABLE = ("dial tcp", "no such host", "i/o timeout", "module lookup disabled", "connection refused")


def run_go(home: Path, name_server: str, *scenarios: str) -> dict[str, Outcome]:
    """Run scenarios with the Go client."""
    home.mkdir(parents=True, exist_ok=True)
    return outcomes_of([str(built_program()), name_server, str(AT_A_TIME), *scenarios], home)


def built_program() -> Path:
    """Return the program, after building it if necessary.

    Skips the test if Go is missing, or cannot fetch the client.
    """
    if shutil.which("go") is None:
        pytest.skip("go is not installed: RocketMQ's Go client cannot be run")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reput-interop"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    built = cache / f"go-{digest}"
    with (cache / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(built)
    return built


def build(target: Path) -> None:
    """Compile the program."""
    command = ["go", "build", "-o", str(target), "."]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    if done.returncode != 0:
        if any(text in done.stderr for text in UNREACHABLE):
            pytest.skip("go cannot fetch RocketMQ's client")
        pytest.fail(f"go cannot build the program:\n{done.stderr}")
