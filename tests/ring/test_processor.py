"""The ring refuses machines whose memory order it does not cover."""

from __future__ import annotations

import re

import pytest

from reput.errors import RingError
from reput.ring import refuse_unproved_processor


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_x86_64_linux_is_covered(machine: str):
    """The processors on which the order was proved are taken."""
    refuse_unproved_processor(machine=machine, system="linux", lock="semaphore")


@pytest.mark.parametrize(
    ("machine", "system", "lock", "named"),
    [
        ("aarch64", "linux", "semaphore", "machine=aarch64"),
        ("riscv64", "linux", "semaphore", "machine=riscv64"),
        ("x86_64", "darwin", "mutex+cond", "system=darwin"),
        ("x86_64", "linux", "mutex+cond", "lock=mutex+cond"),
    ],
)
def test_another_machine_is_refused_and_offered_inline_mode(machine: str, system: str, lock: str, named: str):
    """The sentence names what is not covered, the advice what works instead."""
    with pytest.raises(RingError, match=re.escape(named)) as refusal:
        refuse_unproved_processor(machine=machine, system=system, lock=lock)
    assert 'mode="inline"' in refusal.value.advice


def test_this_interpreter_has_locks_that_are_a_barrier():
    """The tests of this folder prove something about the machine they run on."""
    refuse_unproved_processor()
