"""States of a dispatcher and the steps between them."""

from __future__ import annotations

import pytest

from reput.errors import DispatcherError
from reput.process.dispatcher.states import TRANSITIONS, State, check_transition


def test_every_state_is_reached_and_left():
    """No state is a trap, none is only drawn."""
    assert set(TRANSITIONS) == set(State)
    assert {target for targets in TRANSITIONS.values() for target in targets} == set(State)
    assert all(targets - {source} for source, targets in TRANSITIONS.items())


def test_fatal_and_broken_are_left_by_hand_only():
    """No step leads from them into waiting for a restart."""
    assert State.BACKOFF not in TRANSITIONS[State.FATAL] | TRANSITIONS[State.BROKEN]


def test_a_step_that_is_not_in_the_picture_is_refused():
    """It names the dispatcher and both states."""
    check_transition("index", State.STARTING, State.RUNNING)
    with pytest.raises(DispatcherError, match="dispatcher=index from=STOPPED to=RUNNING"):
        check_transition("index", State.STOPPED, State.RUNNING)
