"""The clauses: a good dispatcher keeps them all, and each one finds a dispatcher that breaks its promise."""

from __future__ import annotations

import gc
import re
import sqlite3
import warnings

import pytest

from process.contract.written_dispatchers import BODIES, BROKEN, COUNTS, SAVES, TOPIC_COUNT, counting
from process.probe_plugin import PluginFolder
from reput.errors import ReputError
from reput.process.contract.host import promises, run_clause, try_clause
from reput.settings import load_settings

# A crash leaves a database open.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")

# The built-in dispatchers of this test read no bodies.
NOT_APPLICABLE = ("retries_after_failures",)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """A folder on `sys.path` with dispatchers that are found like installed ones."""
    folder = PluginFolder(tmp_path / "plugins")
    monkeypatch.syspath_prepend(str(folder.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def attempt(plugins, tmp_path):
    """A function that tries one clause with a dispatcher of the given source."""

    def attempt(source, clause, **given):
        name = f"plugin_{len(plugins.points)}"
        plugins.add(name, source=source)
        directory = tmp_path / name
        directory.mkdir()
        given = {"options": {}, "samples": (), **given}
        return try_clause(clause, dispatcher=name, directory=directory, **given)

    yield attempt
    # A failed dispatcher may leave files open, which are closed here without warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("clause", [clause for clause in promises() if clause != "crash_at_every_call"])
@pytest.mark.parametrize("source", [TOPIC_COUNT, BODIES], ids=["topic_count", "bodies"])
def test_a_good_dispatcher_keeps_its_promises(attempt, clause, source):
    """A file that is replaced as a whole, and a database; one that reads bodies and one that does not."""
    reason = attempt(source, clause)
    assert reason is None or (source is not BODIES and clause == "retries_after_failures")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [pytest.param(TOPIC_COUNT, id="topic_count"), pytest.param(BODIES, id="bodies", marks=pytest.mark.long)]
)
def test_a_good_dispatcher_survives_a_crash_at_every_call(attempt, source):
    """It recovers by itself."""
    assert attempt(source, "crash_at_every_call") is None


def test_a_thread_may_force_what_was_written(attempt):
    """A dispatcher that flushes in the background keeps its promise: the disk is asked by another thread."""
    lines = (
        "import threading",
        "state = msgspec.json.encode(Saved(self.end, self.count))",
        "writer = threading.Thread(target=replace_durably, args=(self.file, state))",
        "writer.start()",
        "writer.join()",
        "(self.file.parent / 'beside').write_bytes(b'written here')",
    )
    source = counting((SAVES, "\n        ".join(lines)))
    assert attempt(source, "flush_forces_to_disk") is None


@pytest.mark.slow
@pytest.mark.parametrize("clause", sorted(promises().keys() - {"crash_at_every_call", "runs_in_a_process"}))
@pytest.mark.parametrize("dispatcher", ["consume_queue", "consume_queue_ext", "index"])
def test_a_built_in_dispatcher_keeps_its_promises(tmp_path, dispatcher, clause):
    """What is asked of third parties holds for RocketMQ's own views, too."""
    reason = run_clause(clause, dispatcher, load_settings(dispatchers=[dispatcher]).settings, (), tmp_path)
    assert reason is None or clause in NOT_APPLICABLE


def test_every_clause_has_a_dispatcher_that_breaks_it():
    """A clause that no dispatcher can break tests nothing."""
    assert BROKEN.keys() == promises().keys()


@pytest.mark.parametrize(
    ("clause", "found", "source"),
    [
        pytest.param(clause, found, source, id=f"{clause}-{number}")
        for clause, mistakes in BROKEN.items()
        for number, (found, source) in enumerate(mistakes)
    ],
)
def test_a_broken_promise_is_found(attempt, clause, found, source):
    """By the clause that is meant to find it."""
    with pytest.raises((AssertionError, OSError, LookupError, ReputError, sqlite3.Error), match=found):
        attempt(source, clause)


@pytest.mark.slow
@pytest.mark.parametrize("sleeps", ["{}", "self.alive(), {}, self.alive(), {}"])
def test_a_batch_that_takes_too_long_is_found(plugins, tmp_path, sleeps):
    """A thousand records at once, or as many as it declares, must not exceed the time limit."""
    work = sleeps.replace("{}", "time.sleep(0.0005 * len(batch))")
    slow = counting(
        (COUNTS, f"        import time\n        {work}\n{COUNTS}"),
        ("        self.file =", "        self.alive = context.alive\n        self.file ="),
    )
    declares = (
        "\n@hookimpl\ndef reput_describe_dispatcher():\n"
        "    from reput_hooks import DispatcherDescription\n"
        "    return DispatcherDescription(batch_record_count_max=100)\n"
    )
    for name, source, time_max in (("slow", slow, 400), ("declaring", slow + declares, 400)):
        plugins.add(name, source=source)
        settings = load_settings(dispatchers=[name], dispatcher_dispatch_time_max=time_max).settings
        directory = tmp_path / name
        directory.mkdir()
        if name == "declaring":
            assert run_clause("catches_up", name, settings, (), directory) is None
        else:
            with pytest.raises(AssertionError, match=r"longer than its time limit: .* declare batch_record_count_max"):
                run_clause("catches_up", name, settings, (), directory)


DECLARES_ELSEWHERE = """

@hookimpl
def reput_describe_dispatcher():
    from reput_hooks import DispatcherDescription
    return DispatcherDescription(view_elsewhere=True)
"""


@pytest.mark.parametrize(
    ("clause", "reason"),
    [
        ("truncates", "it undoes nothing, and stops until an operator decides"),
        ("is_built_again", "only an operator may rebuild it"),
        ("keeps_to_its_folders", None),
        ("runs_in_a_process", None),
    ],
)
def test_a_view_elsewhere_is_never_built_again_by_itself(attempt, clause, reason):
    """The clauses that would need a rebuild report that they do not apply."""
    found = attempt(TOPIC_COUNT + DECLARES_ELSEWHERE, clause)
    assert found is None if reason is None else reason in found


def test_a_difference_is_named(attempt):
    """It names the value and the difference."""
    source = counting(("self.count = Counter(saved.count)", "self.count = Counter()"))
    with pytest.raises(AssertionError, match=r"topic_count\.json: count: orders: found 2 expected 20"):
        attempt(source, "goes_on_where_it_stopped")


READ_VIEW = """

@hookimpl
def reput_read_view(folders):
    return msgspec.json.decode((folders[0] / "topic_count.json").read_bytes())["count"]["orders"]
"""


def test_views_are_compared_as_their_author_says(attempt):
    """If bytes may differ, their meaning is compared."""
    source = counting(("Saved(self.end, self.count)", "Saved(self.end, self.count | {str(id(self)): 1})"))
    with pytest.raises(AssertionError, match="is missing, expected 1"):
        attempt(source, "any_batches")
    assert attempt(source + READ_VIEW, "any_batches") is None


def test_a_promise_is_a_sentence():
    """It is shown beside the result."""
    for name, promise in promises().items():
        assert re.fullmatch(r"[A-Z`].*[.]", promise), name
