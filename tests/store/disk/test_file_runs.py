"""Files of a run are removed from its ends, so that a kill in between leaves no hole."""

from __future__ import annotations

import pytest

from reput.store.disk.file_runs import removal_order


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([3, 4], [1, 2, 6, 5]),
        ([1, 2], [6, 5, 4, 3]),
        ([6], [1, 2, 3, 4, 5]),
        ([], [6, 5, 4, 3, 2, 1]),
        ([9], [6, 5, 4, 3, 2, 1]),
    ],
)
def test_each_file_that_goes_leaves_a_run(wanted, expected):
    """Oldest first before the remaining files, newest first after them; if all are removed, the beginning goes last."""
    assert removal_order([1, 2, 3, 4, 5, 6], wanted) == expected
