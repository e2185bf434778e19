"""Renewals at moments that no running group can be held at. With processes they are tested beside other rebuilds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reput.errors import DispatcherError
from reput.process.dispatcher.states import State
from reput.process.supervisor import renewals
from reput.process.supervisor.renewals import Renewals
from reput_hooks import DispatcherDescription


@pytest.fixture
def group(tmp_path):
    """A group without processes, which writes down whom it starts, and a dispatcher whose view has another format."""
    view = tmp_path / "reput" / "views" / "words"
    view.mkdir(parents=True)
    (view / "words.db").touch()
    member = SimpleNamespace(
        name="words",
        root=None,
        rebuild=None,
        pid=None,
        state=State.BACKOFF,
        description=DispatcherDescription(view_version=2),
        cell=SimpleNamespace(set_error=lambda text: None),
    )
    member.set_state = lambda state: setattr(member, "state", state)
    group = SimpleNamespace(
        context=SimpleNamespace(view_directory=tmp_path),
        merger=SimpleNamespace(say=lambda *_, **__: None),
        members={"words": member},
        rebuild=None,
        finished=False,
        started=[],
    )
    group.renewals = Renewals(group)
    group.start = lambda member: group.renewals.take(member) or group.started.append(member.name)
    return group


def test_where_no_shadow_can_be_made_the_dispatcher_starts_all_the_same(group, monkeypatch):
    """As on a file system that exchanges no folders: its loop empties the view, as it always did."""

    def refuse(*_, **__):
        raise DispatcherError("the file system cannot exchange folders")

    monkeypatch.setattr(renewals, "LiveRebuild", refuse)
    group.start(group.members["words"])
    assert (group.started, group.members["words"].state) == ([], State.STOPPED)
    group.renewals.begin()
    assert group.started == ["words"]
    assert group.renewals.waiting == set()


def test_another_rebuild_is_waited_for(group):
    """One at a time."""
    group.rebuild = object()
    group.start(group.members["words"])
    group.renewals.begin()
    assert group.renewals.waiting == {"words"}


def test_a_view_elsewhere_is_left_to_its_loop_which_refuses(group):
    """Nothing is sent out again without an operator's word."""
    group.members["words"].description = DispatcherDescription(view_version=2, view_elsewhere=True)
    assert not group.renewals.take(group.members["words"])


def test_a_view_that_is_new_or_has_the_format_is_taken_as_it_is(group, tmp_path):
    """Nothing is built again."""
    member = group.members["words"]
    (tmp_path / "reput/views/words/.view_version").write_text("2")
    assert not group.renewals.take(member)
    (tmp_path / "reput/views/words/words.db").unlink()
    member.description = DispatcherDescription(view_version=3)
    assert not group.renewals.take(member)
