"""REPUT_KERNEL decides whether the kernel is used, and whoever asks is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reput
from reput.cli.target.findings import compiled_kernel
from reput.errors import ConfigError, StoreClosed
from reput.kernel import PROTOCOL, VARIABLE, Kernel, found_kernel, kernel, kernel_version
from reput.store.record.message import Message


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module in the kernel's place, which a test changes."""
    module = types.ModuleType("reput_kernel")
    module.PROTOCOL, module.__version__ = PROTOCOL, "0.0.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reput_kernel", module)
    monkeypatch.delenv(VARIABLE, raising=False)
    found_kernel.cache_clear()
    yield module
    found_kernel.cache_clear()


def test_an_installed_kernel_is_used_unless_it_is_off(
    installed: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a kernel that is installed is used; REPUT_KERNEL=off leaves it alone."""
    assert kernel_version() == "0.0.1"
    assert compiled_kernel().finding == "version=0.0.1"
    monkeypatch.setenv(VARIABLE, "off")
    assert kernel() is None
    assert compiled_kernel().finding == "not used: REPUT_KERNEL=off"


def test_a_kernel_of_another_version_is_not_used(installed: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides must have agreed on the same protocol; the doctor tells if they have not."""
    installed.PROTOCOL = PROTOCOL + 1  # type: ignore[attr-defined]
    assert kernel() is None
    assert compiled_kernel().state == "warning"
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ConfigError, match=f"reput-kernel is of another version: protocol={PROTOCOL + 1}"):
        kernel()


def test_a_required_kernel_that_is_not_installed_is_an_error(
    installed: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """REPUT_KERNEL=require without the kernel: no store is opened, and nothing is written."""
    monkeypatch.setitem(sys.modules, "reput_kernel", None)  # type: ignore[arg-type]
    assert compiled_kernel().finding == "not used: reput-kernel is not installed"
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ConfigError, match=r"not installed REPUT_KERNEL=require\n.*--upgrade reput reput-kernel"):
        reput.open(tmp_path / "store", mode="inline")
    assert not (tmp_path / "store").exists()
    assert compiled_kernel().state == "problem"


@pytest.mark.parametrize(
    "code", ["raise OSError('no file')", "import reput_kernel.absent", "raise SystemError('no module')"]
)
def test_a_broken_kernel_is_not_used(
    installed: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    """Whatever loading it raises, by default everything goes on without it, and the doctor tells."""
    (tmp_path / "reput_kernel.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reput_kernel")
    assert kernel() is None
    assert compiled_kernel().state == "warning"
    assert "reput-kernel cannot be loaded: error=" in compiled_kernel().finding
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ConfigError, match="reput-kernel cannot be loaded"):
        kernel()


def test_an_unknown_choice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped REPUT_KERNEL does not silently mean something else."""
    monkeypatch.setenv(VARIABLE, "of")
    with pytest.raises(ConfigError, match="REPUT_KERNEL='of'"):
        kernel()


def test_a_free_threaded_interpreter_is_refused(installed: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel relies on the global lock of the interpreter."""
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else None)
    assert kernel() is None
    assert "free-threaded" in found_kernel()[1]


def test_another_interpreter_of_the_process_is_refused(required_kernel: Kernel) -> None:
    """A subinterpreter takes the Python path, and is told why; the first interpreter keeps the kernel."""
    script = """
        import importlib, sys
        from reput.kernel import found_kernel, kernel

        assert kernel() is not None, found_kernel()
        name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
        interpreters = importlib.import_module(name)
        other = interpreters.create()
        failure = interpreters.run_string(
            other,
            "from reput.kernel import found_kernel, kernel\\n"
            "assert kernel() is None\\n"
            "print(found_kernel()[1])",
        )
        assert failure is None, failure
        assert kernel() is not None
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, VARIABLE: "auto"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("reput-kernel cannot be loaded: error=")


def test_the_status_tells_whether_the_writer_has_the_kernel(
    required_kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Status asks the writer, whose environment counts, not that of the command."""
    with reput.open(tmp_path / "store", mode="inline") as store:
        assert store.status().kernel == required_kernel.__version__
    monkeypatch.setenv(VARIABLE, "off")
    with reput.open(tmp_path / "store", mode="inline") as store:
        assert store.status().kernel is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused(required_kernel: Kernel, tmp_path: Path) -> None:
    """The store of a forked child is closed, also for puts of the kernel."""
    with reput.open(tmp_path / "store", mode="inline") as store:
        message = Message("orders", b"body", tags="TagA")
        store.put(message)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.put(message)
            except StoreClosed:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.put(message).queue_offset == 1


def test_a_put_that_is_interrupted_while_it_is_published_leaves_the_store_usable(
    required_kernel: Kernel, tmp_path: Path
) -> None:
    """Ctrl-C in a put: its lock is free again, and the next put follows the record."""
    from twin_stores import TwinStores

    twins = TwinStores(tmp_path, mapped_file_size_commit_log=1 << 20)
    message = Message("orders", b"body", tags="TagA")
    twins.both(lambda store: store.put(message))

    def interrupt(records: Any) -> None:
        raise KeyboardInterrupt

    for store in twins.stores:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.appender.publisher, "publish", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.put(message)
    # The record is in the log; its queue offset is used.
    assert twins.both(lambda store: store.put(message)).queue_offset == 2
    twins.close()
