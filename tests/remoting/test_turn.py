"""The turn of a loop: what comes together is done together, what comes alone at once."""

from __future__ import annotations

import asyncio

from remoting.asking import in_loop
from reput.remoting.turn import Turn


class Recorder:
    """A sender that notes when it sends."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def flush(self) -> None:
        self.events.append("send")


def read(turn: Turn, events: list[str], name: str) -> None:
    """Handle bytes that want a job and an answer."""
    turn.begin_read()
    events.append(f"read {name}")
    turn.at_end(lambda: events.append(f"store {name}"))
    turn.send_at_end(Recorder(events))
    turn.end_read()


@in_loop
async def test_what_comes_alone_is_stored_and_answered_before_the_loop_goes_on():
    """No turn of the loop lies between a request and its answer."""
    events: list[str] = []
    read(Turn(), events, "a")
    assert events == ["read a", "store a", "send"]


@in_loop
async def test_what_comes_together_is_stored_and_answered_together():
    """Requests that one turn finds share one lock and one flush."""
    events: list[str] = []
    turn = Turn()
    loop = asyncio.get_running_loop()
    loop.call_soon(read, turn, events, "a")
    loop.call_soon(read, turn, events, "b")
    while len(events) < 6:
        await asyncio.sleep(0)
    assert events == ["read a", "read b", "store a", "store b", "send", "send"]


@in_loop
async def test_a_job_that_fails_leaves_the_answers_of_others():
    """What was to be sent is sent, and the next turn works."""
    events: list[str] = []
    turn = Turn()
    turn.send_at_end(Recorder(events))

    def fail() -> None:
        raise RuntimeError("the job fails")

    turn.at_end(fail)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    while not events:
        await asyncio.sleep(0)
    read(turn, events, "a")
    assert events == ["send", "read a", "store a", "send"]
    assert [str(failure) for failure in failures] == ["the job fails"]
