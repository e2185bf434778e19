"""Search for tags codes: the result is the same as by checking each unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.store.queue.consume_queue import UNIT
from reput.store.queue.tags_code_search import find_tags_codes

# A few codes, some of which differ in one byte only, or have the wanted byte at another place.
CODES = st.sampled_from([0, 1, 256, 257, -1, -255, 0x01010101, -(2**31), 2**31 - 1, 3521, 119527])
UNITS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(91, 2**20), CODES), max_size=60)


@pytest.mark.slow
@pytest.mark.newest_python
@given(units=UNITS, codes=st.sets(CODES, max_size=4), count_max=st.sampled_from([1, 2, 7, 1000]))
def test_every_unit_with_a_wanted_code_is_found(units, codes, count_max):
    """Exactly those, in order, up to the number that is asked for."""
    data = b"".join(UNIT.pack(*unit) for unit in units)
    wanted = [number for number, unit in enumerate(units) if unit[2] in codes]
    assert find_tags_codes(data, codes, count_max) == wanted[:count_max]


@pytest.mark.slow
@pytest.mark.newest_python
@given(units=UNITS, number=st.integers(0), address=st.sampled_from([-(2**63) + 64, -(2**31) - 1, 2**31, 1795256886653]))
def test_a_code_that_is_no_hash_says_nothing(units, number, address):
    """It is an ext address or the delivery time of a delayed message: then each unit must be checked."""
    units.insert(number % (len(units) + 1), (0, 100, address))
    assert find_tags_codes(b"".join(UNIT.pack(*unit) for unit in units), {0}, 1) is None
