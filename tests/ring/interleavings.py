"""All interleavings of a few small processes under the memory model of x86-64, total store order.

A process is a generator that yields its accesses to shared memory and receives their results. Its stores go into a
private buffer and reach memory one by one, in order, at any later time; its loads see its own buffer first. The
explorer visits every order in which buffers drain and processes step, each state once. A state of a process is the
position of its generator and its local variables, so a program must not keep state elsewhere: no ``for`` (its iterator
is hidden), no mutable list.

Source of the model: Sewell et al., x86-TSO, CACM 53(7), 2010. A system call counts as a barrier: eventfd takes a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

__all__ = ["Choose", "Fence", "Load", "Signal", "Sleep", "Store", "Take", "Violation", "explore"]


class Load(NamedTuple):
    """Read a word."""

    address: str


class Store(NamedTuple):
    """Write a word, into the buffer."""

    address: str
    value: int


class Fence(NamedTuple):
    """Wait until the buffer is empty."""


class Signal(NamedTuple):
    """Make an eventfd readable."""

    name: str


class Sleep(NamedTuple):
    """Wait until the eventfd is readable: True. With *may_time_out* also continue at any other time: False."""

    name: str
    may_time_out: bool = False


class Take(NamedTuple):
    """Empty the eventfd; the result is whether it was readable."""

    name: str


class Choose(NamedTuple):
    """Continue with each of the numbers below *count*."""

    count: int


Operation = Load | Store | Fence | Signal | Sleep | Take | Choose
Program = Callable[[], Generator[Operation, Any, None]]
Local = int
Buffer = tuple[tuple[int, int], ...]
State = tuple[tuple[int, ...], frozenset[str], tuple[tuple[Local, Buffer], ...]]
# The process that takes it, and the answer that it gets.
Step = tuple[int, Any]

FINISHED: Local = -1
# In place of an answer: the first store of the buffer becomes visible.
DRAINED = object()


class Violation(AssertionError):
    """A promise was broken; the text lists the steps to that state."""


class Process:
    """The states of one program, numbered as they are found; each is a pending operation."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operations: list[Operation] = []
        self._histories: list[tuple[Any, ...]] = []
        self._numbers: dict[str, Local] = {}
        self._next: dict[tuple[Local, Any], Local] = {}
        self.first = self._number(())

    def after(self, local: Local, answer: object) -> Local:
        """Return the next state if the pending operation returned *answer*."""
        key = (local, answer)
        if key not in self._next:
            self._next[key] = self._number((*self._histories[local], answer))
        return self._next[key]

    def _number(self, history: tuple[Any, ...]) -> Local:
        """Return the state after *history*. Generators cannot be copied, so the program is run again from its start."""
        generator = self.program()
        try:
            operation = next(generator)
            for answer in history:
                operation = generator.send(answer)
        except StopIteration:
            return FINISHED
        frame = generator.gi_frame
        assert frame is not None
        key = f"{frame.f_lasti} {sorted(frame.f_locals.items())}"
        if key not in self._numbers:
            self._numbers[key] = len(self.operations)
            self.operations.append(operation)
            self._histories.append(history)
        return self._numbers[key]


def explore(initial: dict[str, int], **programs: Program) -> int:
    """Run *programs* in all interleavings from the words *initial*; return the number of different states.

    Raises:
        Violation: a program raised AssertionError, or one sleeps for ever.
    """
    addresses = {address: index for index, address in enumerate(initial)}
    names = list(programs)
    processes = [Process(program) for program in programs.values()]

    words = list(initial)
    # Most steps of a process are taken in many states of the others.
    settled: list[dict[tuple[Local, Buffer], tuple[Local, Buffer]]] = [{} for _ in processes]

    def settle(index: int, local: Local, buffer: Buffer) -> tuple[Local, Buffer]:
        # Steps that no other process can see are taken at once: filling the buffer, and a fence with an empty buffer.
        known = settled[index].get((local, buffer))
        if known is not None:
            return known
        process, begin = processes[index], (local, buffer)
        while local != FINISHED:
            operation = process.operations[local]
            if isinstance(operation, Store):
                buffer = (*buffer, (addresses[operation.address], operation.value))
            elif not (isinstance(operation, Fence) and not buffer):
                break
            local = process.after(local, None)
        found = settled[index][begin] = (local, buffer)
        return found

    def successors(state: State) -> list[tuple[Step, State]]:
        memory, readable, locals_ = state
        found: list[tuple[Step, State]] = []

        def go(index: int, answer: object, now_readable: frozenset[str]) -> None:
            local, buffer = locals_[index]
            try:
                after = settle(index, processes[index].after(local, answer), buffer)
            except AssertionError as error:
                step = told(state, (index, answer))
                raise Violation(f"{names[index]}: {error}\n{story(state)}  {step}") from None
            found.append(((index, answer), (memory, now_readable, replaced(locals_, index, after))))

        for index, (local, buffer) in enumerate(locals_):
            if buffer:
                (address, value), rest = buffer[0], buffer[1:]
                after = settle(index, local, rest)
                found.append(
                    ((index, DRAINED), (replaced(memory, address, value), readable, replaced(locals_, index, after)))
                )
            if local == FINISHED:
                continue
            operation = processes[index].operations[local]
            kind = type(operation)
            if kind is Load:
                at = addresses[operation.address]
                value = memory[at]
                for target, stored in buffer:
                    if target == at:
                        value = stored
                go(index, value, readable)
            elif kind is Choose:
                for number in range(operation.count):
                    go(index, number, readable)
            elif buffer:
                # A system call counts as a barrier.
                continue
            elif kind is Signal:
                go(index, None, readable | {operation.name})
            elif kind is Take:
                go(index, operation.name in readable, readable - {operation.name})
            elif kind is Sleep:
                if operation.name in readable:
                    go(index, True, readable)
                if operation.may_time_out:
                    go(index, False, readable)
        return found

    def told(state: State, step: Step) -> str:
        """Return a step as a line of the story. Few steps are told, so their texts are made only then."""
        index, answer = step
        local, buffer = state[2][index]
        if answer is DRAINED:
            address, value = buffer[0]
            return f"{names[index]}: {words[address]}={value} becomes visible"
        match processes[index].operations[local]:
            case Load(address):
                text = f"loads {address}={answer}"
            case Signal(name):
                text = f"signals {name}"
            case Take(name):
                text = f"empties {name}"
            case Sleep(name):
                text = f"is woken by {name}" if answer else f"sleeps on {name} until its time runs out"
            case _:
                text = f"chooses {answer}"
        return f"{names[index]}: {text}"

    def story(state: State) -> str:
        lines: list[str] = []
        while (before := came_from[state]) is not None:
            state, step = before
            lines.append(f"  {told(state, step)}\n")
        return "".join(["  start\n", *reversed(lines)])

    start: State = (
        tuple(initial.values()),
        frozenset(),
        tuple(settle(index, process.first, ()) for index, process in enumerate(processes)),
    )
    came_from: dict[State, tuple[State, Step] | None] = {start: None}
    stack = [start]
    while stack:
        state = stack.pop()
        following = successors(state)
        if not following:
            asleep = [names[index] for index, (local, _) in enumerate(state[2]) if local != FINISHED]
            if asleep:
                raise Violation(f"sleeps for ever: {', '.join(asleep)}\n{story(state)}")
        for step, target in following:
            if target not in came_from:
                came_from[target] = (state, step)
                stack.append(target)
    return len(came_from)


def replaced(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
