"""States of a dispatcher, the steps between them, and the phases of its work. Data only.

Other processes read the numbers in the dispatcher's cell, also after its death: never renumber them.
"""

from __future__ import annotations

import enum

from reput.errors import DispatcherError

__all__ = ["ABSENT", "BEGIN_WAIT_S", "TRANSITIONS", "WILL_NOT_START", "Phase", "State", "StopMode", "check_transition"]


class State(enum.IntEnum):
    """The state of a dispatcher, as the supervisor sets it."""

    STOPPED = 0  # no process, none wanted
    STARTING = 1  # the process was made; `start` has not returned
    RUNNING = 2  # batches are dispatched
    BACKOFF = 3  # the process died; the next one waits
    PAUSED = 4  # stopped by hand, until it is resumed
    STOPPING = 5  # the process was asked to flush and end, or killed for a phase that took too long, and has not ended
    FATAL = 6  # it died too often, or refused to start; left by hand only
    BROKEN = 7  # it cannot be imported or described; left by hand only


# A view whose dispatcher is in one of these before it has said how far the view reaches is not known soon.
WILL_NOT_START = frozenset({State.BACKOFF, State.PAUSED, State.FATAL, State.BROKEN})
# A dispatcher that has not started after this time is in trouble.
BEGIN_WAIT_S = 30.0

TRANSITIONS: dict[State, frozenset[State]] = {
    State.STOPPED: frozenset({State.STARTING, State.BROKEN}),
    State.STARTING: frozenset({State.RUNNING, State.BACKOFF, State.STOPPING, State.FATAL, State.BROKEN}),
    State.RUNNING: frozenset({State.BACKOFF, State.STOPPING, State.FATAL}),
    State.BACKOFF: frozenset({State.STARTING, State.PAUSED, State.STOPPED}),
    State.PAUSED: frozenset({State.STARTING, State.STOPPED}),
    State.STOPPING: frozenset({State.STOPPED, State.PAUSED, State.STARTING, State.BACKOFF, State.FATAL}),
    State.FATAL: frozenset({State.STARTING, State.PAUSED, State.STOPPED}),
    State.BROKEN: frozenset({State.STARTING, State.STOPPED, State.BROKEN}),
}
assert TRANSITIONS.keys() == set(State)

# No process works on the view, and none starts without a request: successors need not wait for it for ever.
ABSENT = frozenset({State.STOPPED, State.PAUSED, State.FATAL, State.BROKEN})


def check_transition(name: str, source: State, target: State) -> None:
    """Refuse a step that `TRANSITIONS` does not allow.

    Raises:
        DispatcherError: there is no such step.
    """
    if target not in TRANSITIONS[source]:
        raise DispatcherError(f"a dispatcher cannot go that way: dispatcher={name} from={source.name} to={target.name}")


class Phase(enum.IntEnum):
    """The phase of a dispatcher's thread. All phases but IDLE call the plugin, and each has its own time limit."""

    IDLE = 0
    START = 1
    DISPATCH = 2
    FLUSH = 3
    EXPIRE = 4


class StopMode(enum.Enum):
    """How a dispatcher's loop ends."""

    NOW = "now"  # flush and end
    DRAIN = "drain"  # dispatch what is there, flush and end
