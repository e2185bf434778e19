"""For the kernel's tests: without it they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput.kernel import VARIABLE, Kernel, found_kernel, kernel


@pytest.fixture(scope="module")
def required_kernel() -> Iterator[Kernel]:
    """The kernel, required in this process."""
    found, reason = found_kernel()
    if found is None:
        pytest.skip(f"the kernel cannot be used: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "require")
        required = kernel()
        assert required is not None
        yield required
