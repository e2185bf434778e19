"""Calls that looked right, were measured to be wrong, and must not come back."""

from __future__ import annotations

import ast
import re
from unittest.mock import ANY

from source_tree import modules


def mentions(*names: str) -> list[str]:
    """Return the places where the product's code mentions one of *names*."""
    return [
        f"{module.source}:{line} {name}"
        for module in modules()
        for name, line in module.names
        if name in names or ("." in name and name.rpartition(".")[2] in names)
    ]


def test_nobody_packs_into_memory_that_others_read():
    """`pack_into` zeroes its target before it writes, so another process would occasionally read 0.

    Shared words are assigned through a memoryview of "Q"; wider fields are packed into bytes first.
    """
    assert not mentions("pack_into")


def test_nobody_forces_a_mapping_with_mmap_flush():
    """`mmap.flush` holds the interpreter lock for its whole duration; `os.fdatasync` in a thread does not."""
    wrong = []
    for module in modules():
        if not any(name.split(".")[0] == "mmap" for name, _ in module.imports):
            continue
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "flush":
                wrong.append(f"{module.source}:{node.lineno}")
    assert not wrong


def test_there_is_no_named_shared_memory():
    """A name outlives a `kill -9`; memory of a memfd ends with its last process."""
    assert not mentions("SharedMemory", "ShareableList", "SharedMemoryManager", "shm_open")


def test_no_queue_is_shared_by_the_group():
    """One multiprocessing queue for all logs is silenced by one stopped or killed process; pipes are not."""
    # The standard library's own `queue.SimpleQueue` connects threads of one process.
    own = {module.source for module in modules() if ("queue.SimpleQueue", ANY) in module.imports}
    shared = mentions("multiprocessing", "SimpleQueue", "JoinableQueue", "QueueHandler", "QueueListener")
    assert [place for place in shared if not ("SimpleQueue" in place and place.split(":")[0] in own)] == []


def test_parent_death_signals_serve_only_supervisor_and_dispatcher():
    """The signal comes when the *thread* that started the child ends: an owner's threads may, a supervisor has one."""
    users = {module.name for module in modules() if re.search(r"prctl|PDEATHSIG", ast.unparse(module.tree))}
    assert users <= {"reput.process.system.parent_death", "reput.process.supervisor.supervisor"}


def test_no_loop_sleeps_on_its_own_account():
    """Each process waits in one place, where it can be woken: an idle strategy, a poll, an event.

    A benchmark that puts at a given rate is the exception.
    """
    assert [place for place in mentions("time.sleep") if not place.startswith("core/reput/bench/")] == []
