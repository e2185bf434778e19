"""Rebuilds of stale views in situations in which no group can be held. With processes: test_live_rebuild.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reput.errors import DispatcherError
from reput.process.dispatcher.states import State
from reput.process.supervisor import rebuilds
from reput.process.supervisor.rebuilds import Rebuilds
from reput.process.supervisor.stale_views import StaleViews
from reput_hooks import DispatcherDescription


@pytest.fixture
def group(tmp_path):
    """A group without processes, which records starts, and a dispatcher whose view has another format."""
    view = tmp_path / "reput" / "views" / "words"
    view.mkdir(parents=True)
    (view / "words.db").touch()
    member = SimpleNamespace(
        name="words",
        root=None,
        shadow=None,
        pid=None,
        state=State.BACKOFF,
        description=DispatcherDescription(view_version=2),
        cell=SimpleNamespace(set_error=lambda text: None),
    )
    member.set_state = lambda state: setattr(member, "state", state)
    merger = SimpleNamespace(say=lambda *_, **__: None)
    group = SimpleNamespace(
        merger=merger,
        members={"words": member},
        stale=StaleViews(tmp_path, merger),
        finished=False,
        started=[],
    )
    group.start = lambda member: group.stale.hold(member) or group.started.append(member.name)
    return group


def test_where_no_shadow_can_be_made_the_dispatcher_starts_all_the_same(group, monkeypatch):
    """For example on a file system that cannot exchange folders: its loop empties the view."""

    def refuse(*_, **__):
        raise DispatcherError("the file system cannot exchange folders")

    monkeypatch.setattr(rebuilds, "LiveRebuild", refuse)
    group.start(group.members["words"])
    assert (group.started, group.members["words"].state) == ([], State.STOPPED)
    Rebuilds(group).look()
    assert group.started == ["words"]
    assert group.stale.waiting == set()


def test_another_rebuild_is_waited_for(group):
    """Only one runs at a time."""
    waiting = Rebuilds(group)
    waiting.current = SimpleNamespace(look=lambda: None, finished=False)
    group.start(group.members["words"])
    waiting.look()
    assert group.stale.waiting == {"words"}


def test_a_view_elsewhere_is_left_to_its_loop_which_refuses(group):
    """Nothing is sent again without an operator's request."""
    group.members["words"].description = DispatcherDescription(view_version=2, view_elsewhere=True)
    assert not group.stale.hold(group.members["words"])


def test_a_view_that_is_new_or_has_the_format_is_taken_as_it_is(group, tmp_path):
    """Nothing is rebuilt."""
    member = group.members["words"]
    (tmp_path / "reput/views/words/.view_version").write_text("2")
    assert not group.stale.hold(member)
    (tmp_path / "reput/views/words/words.db").unlink()
    member.description = DispatcherDescription(view_version=3)
    assert not group.stale.hold(member)
