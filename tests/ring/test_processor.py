"""The ring refuses machines for which its memory order is not proved."""

from __future__ import annotations

import re

import pytest

from reput.errors import RingError
from reput.ring import refuse_unproved_processor


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_x86_64_linux_is_covered(machine: str):
    """The processors for which the order was proved are accepted."""
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
    """The error names what is not supported, the advice the alternative."""
    with pytest.raises(RingError, match=re.escape(named)) as refusal:
        refuse_unproved_processor(machine=machine, system=system, lock=lock)
    assert 'mode="inline"' in refusal.value.advice


def test_this_interpreter_has_locks_that_are_a_barrier():
    """So the tests of this folder are valid for the machine they run on."""
    refuse_unproved_processor()
