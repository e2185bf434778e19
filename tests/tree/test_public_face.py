"""The public face: whatever a public method gives is public, and each that may wait has a coroutine twin."""

from __future__ import annotations

import builtins
import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import reput
import reput.filter
from reput.store.reader.results import Records

# What touches memory only, or calls of which a task awaits another: no twin.
MEMORY_ONLY = {
    "Administration": {"dead_letters"},
    "Client": {"administration", "closed", "producer", "transactions", "worker"},
    "ClusterAdministration": {"dead_letters"},
    "Consumer": {"ack", "acknowledge", "closed", "group", "in_flight_max", "retry", "topics"},
    "FollowingStore": {"following"},
    "GroupDeadLetters": set(),
    "Producer": {"group"},
    "ReadOnlyStore": {"closed", "directory", "settings"},
    "RemoteConsumer": {"ack", "acknowledge", "closed", "group", "in_flight_max", "retry", "topics"},
    "Store": {
        *{"administration", "appended", "closed", "commit_log_offset_min", "delays", "directory", "durable"},
        *{"next_queue_offset", "pids", "progress", "settings", "statistics", "transactions", "worker"},
    },
    "TransactionService": {"status"},
    "Transactions": set(),
}
PUBLIC = {getattr(reput, name) for name in reput.__all__ if isinstance(getattr(reput, name), type)}
FILTERS = {getattr(reput.filter, name) for name in reput.filter.__all__}
# A sequence of records, which a program uses as such.
UNNAMED = {Records}


class Names(dict[str, Any]):
    """The names of a module, and those that only type checkers see."""

    def __missing__(self, name: str) -> Any:
        return getattr(reput, name, getattr(builtins, name, Any))


def methods_of(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties, the latter as functions."""
    for name in dir(owner):
        member = inspect.getattr_static(owner, name)
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes of the product that a type names."""
    if isinstance(hint, type) and hint.__module__.startswith("reput."):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


@pytest.mark.parametrize("owner", sorted(PUBLIC, key=str), ids=lambda owner: owner.__name__)
def test_what_a_public_method_takes_and_gives_is_public(owner):
    """A program can name the type of each value that it gets, and `help` and the API page describe it."""
    hints = [
        typing.get_type_hints(function, {}, Names(vars(sys.modules[function.__module__])))
        for _, function in methods_of(owner)
    ]
    if hasattr(owner, "__struct_fields__"):
        hints.append(typing.get_type_hints(owner, None, Names(vars(sys.modules[owner.__module__]))))
    named = {found for types in hints for hint in types.values() for found in classes_in(hint)}
    assert {found.__name__ for found in named - PUBLIC - FILTERS - UNNAMED} == set()


@pytest.mark.parametrize("owner", sorted(MEMORY_ONLY))
def test_every_method_that_may_wait_has_a_coroutine_twin(owner):
    """The same name with the prefix `a`, and the same arguments. A task never needs a call that blocks its loop."""
    methods = dict(methods_of(getattr(reput, owner)))
    inherited = MEMORY_ONLY["Store"] if owner == "FollowingStore" else set()
    twins = {name for name in methods if name[0] == "a" and name[1:] in methods}
    blocking = methods.keys() - twins - MEMORY_ONLY[owner] - inherited
    assert {name for name in blocking if "a" + name not in methods} == set()
    for name in blocking:
        assert inspect.signature(methods["a" + name]).parameters == inspect.signature(methods[name]).parameters, name


def test_every_class_with_a_coroutine_is_compared_with_its_twins():
    """A new class on the face is entered above."""
    with_coroutines = {
        owner.__name__
        for owner in PUBLIC
        if any(inspect.iscoroutinefunction(function) for _, function in methods_of(owner))
    }
    # A worker in a task handles no signals, so `arun` lacks that argument.
    assert with_coroutines <= MEMORY_ONLY.keys() | {"Worker"}


def test_opening_and_following_have_twins():
    """`async with await reput.aopen(…)`."""
    assert inspect.iscoroutinefunction(reput.aopen)
    assert inspect.iscoroutinefunction(reput.afollow)
