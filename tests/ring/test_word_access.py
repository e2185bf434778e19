"""How words are read and written on this machine, and the machines that the ring refuses."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable

import pytest

from reput.errors import RingError
from reput.kernel import VARIABLE, RingWords, found_kernel
from reput.ring import word_access

EIGHT = range(100, 108)
# A memory view raises the one, the kernel the other.
NO_PLACE, NO_WORD = (IndexError,), (ValueError, OverflowError)


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_x86_64_uses_memory_views(machine: str):
    """There the processor keeps the order, and no word costs a call."""
    access = word_access(machine=machine, system="linux", lock="semaphore")
    assert type(access.words(memoryview(bytes(8)))) is memoryview


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_aarch64_uses_the_kernel(machine: str, monkeypatch: pytest.MonkeyPatch):
    """The kernel keeps the order that the processor does not; the interpreter's locks need not be a barrier."""
    used, reason = found_kernel()
    if used is None:
        pytest.skip(f"the kernel cannot be used: {reason}")
    monkeypatch.setenv(VARIABLE, "auto")
    assert word_access(machine, "linux", "mutex+cond") == (used.RingWords, used.RingBarrier)


def test_aarch64_without_the_kernel_is_refused_and_offered_it(monkeypatch: pytest.MonkeyPatch):
    """The advice names both ways out: the kernel, and inline mode."""
    monkeypatch.setenv(VARIABLE, "off")
    with pytest.raises(RingError, match=r"need the kernel on this processor.*machine=aarch64") as refusal:
        word_access("aarch64", "linux", "semaphore")
    assert "reput[kernel]" in refusal.value.advice
    assert 'mode="inline"' in refusal.value.advice


@pytest.mark.parametrize(
    ("machine", "system", "lock", "named"),
    [
        ("riscv64", "linux", "semaphore", "machine=riscv64"),
        ("aarch64_be", "linux", "semaphore", "machine=aarch64_be"),
        ("arm64", "darwin", "mutex+cond", "system=darwin"),
        ("x86_64", "darwin", "mutex+cond", "system=darwin"),
        ("x86_64", "linux", "mutex+cond", "lock=mutex+cond"),
    ],
)
def test_another_machine_is_refused_and_offered_inline_mode(machine: str, system: str, lock: str, named: str):
    """The error names what is not supported, the advice the alternative."""
    with pytest.raises(RingError, match=re.escape(named)) as refusal:
        word_access(machine=machine, system=system, lock=lock)
    assert 'mode="inline"' in refusal.value.advice


def test_this_machine_is_covered():
    """So the tests of this folder are valid for the machine they run on."""
    word_access()


@pytest.fixture
def kernel_words() -> Callable[[memoryview], RingWords]:
    """The kernel's words."""
    used, reason = found_kernel()
    if used is None:
        pytest.skip(f"the kernel cannot be used: {reason}")
    return used.RingWords


@pytest.mark.parametrize("part", [slice(None), slice(2, 5), slice(1, None, 3), slice(8, None), slice(None, None, -1)])
def test_words_of_the_kernel_read_as_a_memory_view(kernel_words: Callable[[memoryview], RingWords], part: slice):
    """Every slice has the same words, bytes and equality."""
    octets = memoryview(array("Q", EIGHT)).cast("B")
    view, words = octets.cast("Q")[part], kernel_words(octets)[part]
    assert words.tolist() == view.tolist() == [words[index] for index in range(-len(view), 0)]
    assert words.tobytes() == view.tobytes()
    assert words == view
    assert words != memoryview(array("Q", [*view.tolist(), 1]))
    if len(view):
        changed = array("Q", view.tolist())
        changed[-1] += 1
        assert words != memoryview(changed)


def test_words_of_the_kernel_are_stored_where_a_memory_view_stores_them(
    kernel_words: Callable[[memoryview], RingWords],
):
    """From 0 to the largest number of 8 bytes, by index from either end and through slices."""
    memory = array("Q", EIGHT)
    words = kernel_words(memoryview(memory).cast("B"))
    words[0], words[-1] = 0, 2**64 - 1
    words[3] = True
    words[4:][1] = 7
    assert memory.tolist() == [0, 101, 102, 1, 104, 7, 106, 2**64 - 1]


@pytest.mark.parametrize(
    ("index", "value", "error"),
    [(8, 0, NO_PLACE), (-9, 0, NO_PLACE), (0, -1, NO_WORD), (0, 1 << 64, NO_WORD)],
)
def test_a_store_that_does_not_fit_is_an_error_and_changes_nothing(
    kernel_words: Callable[[memoryview], RingWords],
    index: int,
    value: int,
    error: tuple[type[Exception], ...],
):
    """A place that does not exist, or a number that a word cannot hold."""
    memory = array("Q", EIGHT)
    for words in (memoryview(memory), kernel_words(memoryview(memory).cast("B"))):
        with pytest.raises(error):
            words[index] = value
    assert memory.tolist() == list(EIGHT)


def test_released_words_cannot_be_used_and_keep_nothing(kernel_words: Callable[[memoryview], RingWords]):
    """The memory can be closed then, and not before."""
    memory = bytearray(64)
    words = kernel_words(memoryview(memory))
    part = words[2:4]
    words.release()
    words.release()
    with pytest.raises(BufferError):
        memory.append(0)
    part.release()
    memory.append(0)
    with pytest.raises(ValueError, match="released"):
        words[0]
