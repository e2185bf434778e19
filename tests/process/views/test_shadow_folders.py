"""Views built beside the running ones, and their swap, with a crash at every step."""

from __future__ import annotations

import shutil

import pytest

from reput.errors import DamagedStore, DispatcherError
from reput.process.views import shadow_folders, view_folders
from reput.process.views.dead_letters import DeadLetter, DeadLetters
from reput.process.views.gaps import Gap, Gaps
from reput.process.views.shadow_folders import ShadowFolders
from reput.process.views.view_folders import ViewFolders

VIEWS = {"ext": ("consumequeue_ext",), "queue": ("consumequeue",)}
PLACES = ("consumequeue_ext", "reput/views/ext", "consumequeue", "reput/views/queue")
STEPS = ("exchange_paths", "replace_durably", "force_directory")


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def shadow(tmp_path):
    """Two views, old ones in the store and new ones in its shadow; a file in each folder says which one it is."""
    shadow = ShadowFolders(tmp_path)
    for place in PLACES:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "which").write_text("old")
    shadow.prepare({})
    for place in PLACES:
        (shadow.root / place).mkdir(parents=True)
        (shadow.root / place / "which").write_text("new")
    return shadow


def held(shadow):
    """Return the content of the views' folders."""
    return [(shadow.store / place / "which").read_text() for place in PLACES]


def swap(shadow):
    shadow.begin_swap(VIEWS)
    shadow.complete()
    shadow.forget_intent()
    shadow.remove()


def assert_settled(shadow):
    assert not shadow.root.exists()
    assert not shadow.intent.exists()


def test_a_swap_puts_the_new_views_into_their_places(shadow):
    """Nothing is left of the old views."""
    swap(shadow)
    assert held(shadow) == ["new"] * 4
    assert_settled(shadow)


def test_a_crash_at_any_step_leaves_all_old_or_all_new(shadow, tmp_path, monkeypatch):
    """After the next start there is never a mixture and never a shadow."""
    outcomes = []
    source = tmp_path.with_name("source")
    shutil.copytree(tmp_path, source)
    for crash_at in range(100):
        shutil.rmtree(tmp_path)
        shutil.copytree(source, tmp_path)
        count = 0

        def crashing(name, module=shadow_folders, at=crash_at):
            done = getattr(module, name)

            def step(*arguments, **options):
                nonlocal count
                count += 1
                if count > at:
                    raise Crash
                return done(*arguments, **options)

            return step

        with monkeypatch.context() as patched:
            for name in STEPS:
                patched.setattr(shadow_folders, name, crashing(name))
            patched.setattr(shadow_folders.shutil, "rmtree", crashing("rmtree", shutil))
            try:
                swap(shadow)
            except Crash:
                finished = False
            else:
                finished = True
        outcomes.append(finished)
        swapped = shadow.settle()
        now = held(shadow)
        assert now in (["old"] * 4, ["new"] * 4), crash_at
        assert_settled(shadow)
        if swapped:
            assert now == ["new"] * 4
        if finished:
            break
    assert outcomes[-1]
    assert len(outcomes) > 8


def test_a_completion_that_crashes_is_completed_by_the_next(shadow, monkeypatch):
    """No pair is exchanged twice, however many tries are needed."""
    shadow.begin_swap(VIEWS)
    real, calls = shadow_folders.exchange_paths, []

    def once(left, right):
        if calls:
            calls.clear()
            raise Crash
        calls.append(left)
        real(left, right)

    monkeypatch.setattr(shadow_folders, "exchange_paths", once)
    for _ in range(3):
        with pytest.raises(Crash):
            shadow.settle()
    assert set(shadow.settle()) == set(VIEWS)
    assert held(shadow) == ["new"] * 4


def test_a_shadow_without_intent_is_removed(shadow):
    """It is incomplete, and the old views are valid; so is an intent whose writer was killed."""
    draft = shadow.intent.with_name("shadow.swap.draft")
    draft.write_bytes(b"half")
    assert shadow.settle() == ()
    assert not draft.exists()
    assert held(shadow) == ["old"] * 4
    assert_settled(shadow)


def test_a_copy_of_a_store_in_the_middle_of_a_swap_has_its_views_emptied(shadow, tmp_path):
    """A copy has different folders, and their relation is unknown: the views are rebuilt from the log."""
    shadow.begin_swap(VIEWS)
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    ShadowFolders(copy).settle()
    for view, folders in VIEWS.items():
        ViewFolders(copy, view, folders).prepare()
        assert list((copy / "reput" / "views" / view).iterdir()) == []
        assert not (copy / folders[0]).exists()
    assert_settled(ShadowFolders(copy))


@pytest.mark.parametrize("gone", ["reput/views", "reput/views/queue", "consumequeue", "reput/shadow"])
def test_a_swap_whose_folders_are_gone_has_the_views_emptied(shadow, gone):
    """The store opens again, and its dispatchers rebuild the views from the log."""
    shadow.begin_swap(VIEWS)
    shutil.rmtree(shadow.store / gone)
    shadow.settle()
    assert_settled(shadow)
    for view, folders in VIEWS.items():
        ViewFolders(shadow.store, view, folders).prepare()
        rest = [path.name for path in (shadow.store / "reput" / "views" / view).iterdir()]
        kept = (shadow.store / folders[0]).exists()
        # The swap of another view is not affected.
        whole = view == "ext" and gone in ("reput/views/queue", "consumequeue")
        assert (rest, kept) == ((["which"], True) if whole else ([], False))


def test_an_emptying_of_the_old_view_does_not_go_on_in_the_new(shadow):
    """A killed dispatcher that was emptying its view left an intent for that view."""
    view_folders.replace_durably(ViewFolders(shadow.store, "queue", ()).intent, b"")
    swap(shadow)
    ViewFolders(shadow.store, "queue", VIEWS["queue"]).prepare()
    assert held(shadow) == ["new"] * 4


def test_a_folder_that_a_view_has_not_made_is_swapped_as_an_empty_one(shadow):
    """A log without keys creates no index."""
    shutil.rmtree(shadow.root / "consumequeue")
    swap(shadow)
    assert list((shadow.store / "consumequeue").iterdir()) == []


def test_views_that_are_looked_into_are_linked(shadow):
    """The view finds the views that it refers to beside it, and removing the shadow does not remove their files."""
    shadow.settle()
    shadow.prepare({"ext": ("consumequeue_ext",)})
    assert (shadow.root / "consumequeue_ext" / "which").read_text() == "old"
    assert (shadow.root / "reput" / "views" / "ext" / "which").read_text() == "old"
    shadow.settle()
    assert held(shadow) == ["old"] * 4


def test_a_view_with_a_gap_is_not_swapped_in(shadow):
    """Retention removed records that the old view may have."""
    shadow.check(["queue"])
    Gaps(shadow.root, "queue").add(Gap(0, 0, 100))
    with pytest.raises(DispatcherError, match="gap_bytes=100"):
        shadow.check(["queue"])


def test_dead_letters_are_kept_once(shadow):
    """Records rejected by both views are in the file once; those rejected only by the new view are added."""

    def letter(offset):
        return DeadLetter(0, 1, offset, 1, "t", 0, 0, "poison", bytes([offset]))

    DeadLetters(shadow.store, "queue").add(letter(1))
    for offset in (1, 2):
        DeadLetters(shadow.root, "queue").add(letter(offset))
    swap(shadow)
    assert [kept.commit_log_offset for kept in DeadLetters(shadow.store, "queue").lines.read()] == [1, 2]


@pytest.mark.parametrize("name", ["shadow.swap", "shadow"])
def test_what_a_rebuild_did_not_leave_is_named(tmp_path, name):
    """A torn intent and a file in the shadow's place: the error says which file is in the way, and what to do."""
    path = tmp_path / "reput" / name
    path.parent.mkdir()
    path.touch()
    with pytest.raises(DamagedStore, match=rf"(?m)path={path}( |$)") as caught:
        ShadowFolders(tmp_path).settle()
    assert caught.value.advice.startswith("Move it away")
    path.unlink()
    ShadowFolders(tmp_path).settle()
