"""The cost of `import reput`."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each is imported by its own process, which restarts after a crash.
DISPATCHERS = ("reput_plugins.consume_queue", "reput_plugins.consume_queue_ext", "reput_plugins.index")
HEAVY = ("numpy", "pyarrow", "pyspark", "deltalake", "typer", "rich", "asyncio", "multiprocessing")


def modules_after(statement: str) -> set[str]:
    """Return the names of all modules that a fresh interpreter has loaded after *statement*."""
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("package", ["reput", "reput_hooks", "reput_plugins", *DISPATCHERS])
def test_importing_a_package_loads_nothing_heavy(package):
    """A program with reput starts as fast as without: numpy, Arrow and Spark are loaded on demand."""
    assert modules_after(f"import {package}").isdisjoint(HEAVY)


def test_the_hooks_load_nothing_of_ours():
    """An author of a dispatcher imports `reput_hooks` and loads only that."""
    assert not {name for name in modules_after("import reput_hooks") if name.split(".")[0] == "reput"}


def test_a_command_is_interruptible_at_once():
    """Until `main` runs, Ctrl-C prints a traceback; so few modules are imported before."""
    ours = modules_after("import reput.cli") - modules_after("import collections.abc, __future__")
    assert ours == {"reput", "reput.cli", "reput.lazy_exports"}
