"""The contract as pytest tests, as a plugin's author writes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from process.contract.written_dispatchers import TOPIC_COUNT, counting
from process.probe_plugin import PluginFolder

pytestmark = pytest.mark.processes

THREE_LINES = """
from reput_hooks.testing import DispatcherContract

class TestContract(DispatcherContract):
    dispatcher = "topic_count"
"""


@pytest.fixture
def run_pytest(tmp_path, monkeypatch):
    """Return a function that runs pytest on a file, beside an installed dispatcher of a given source."""

    def run(test, source, clauses):
        folder = PluginFolder(tmp_path / "plugins")
        folder.add("topic_count", source=source)
        monkeypatch.setenv("PYTHONPATH", str(folder.folder))
        (tmp_path / "test_plugin.py").write_text(test)
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", clauses, tmp_path]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run


def test_three_lines_are_the_whole_contract(run_pytest):
    """Each clause is a test; one that does not apply is skipped, with the reason."""
    done = run_pytest(THREE_LINES, TOPIC_COUNT, "any_batches or retries or expires")
    assert done.returncode == 0, done.stdout
    assert "test_contract[any_batches] PASSED" in done.stdout
    assert "2 passed, 1 skipped" in done.stdout


def test_a_broken_promise_is_a_failed_test(run_pytest):
    """The failure says what is wrong."""
    done = run_pytest(THREE_LINES, TOPIC_COUNT.replace("Counter(saved.count)", "Counter()"), "stopped")
    assert done.returncode == 1
    assert "test_contract[goes_on_where_it_stopped] FAILED" in done.stdout
    assert "the view differs after pauses" in done.stdout


OVERRIDDEN = """
from reput_hooks.testing import DispatcherContract, Sample

class TestContract(DispatcherContract):
    dispatcher = "topic_count"
    samples = [Sample("one", b"x" * 900) for _ in range(50)]
"""


def test_samples_are_the_author_s(run_pytest):
    """A plugin can supply its own messages."""
    source = counting(("request.topic for request in batch", "{'one': 1}[request.topic] for request in batch"))
    done = run_pytest(OVERRIDDEN, source, "any_batches or truncates")
    assert done.returncode == 0, done.stdout
    assert "test_contract[any_batches] PASSED" in done.stdout
    assert "test_contract[truncates] PASSED" in done.stdout
