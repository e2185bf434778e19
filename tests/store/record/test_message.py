"""Messages: the string of their properties, and RocketMQ's names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.errors import MessageIllegal
from reput.filter.tags import can_be_selected
from reput.store.record.message import Message, check_topic, message_properties
from reput.store.record.properties import decode_properties

NAMES = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
LEGAL = set("%|_-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
VALUES = st.text(st.characters(exclude_characters="\0\x02", exclude_categories=["Cs"]), max_size=50)
KEYS = st.text(st.characters(exclude_characters="\0\x02 ", exclude_categories=["Cs"]), max_size=50)


@pytest.mark.slow
@pytest.mark.newest_python
@given(
    properties=st.dictionaries(NAMES, VALUES, max_size=6),
    tags=st.none() | VALUES.filter(can_be_selected),
    keys=st.none() | st.lists(KEYS, max_size=3),
)
def test_what_was_given_is_what_is_read(properties, tags, keys):
    """In the given order; keys and tags override properties of their names."""
    data, found_tags, found_keys, uniq_key = message_properties(Message("t", b"", tags, keys, properties))
    expected = dict(properties)
    if keys is not None:
        expected["KEYS"] = " ".join(keys)
    if tags is not None:
        expected["TAGS"] = tags
    assert decode_properties(data) == expected
    assert list(decode_properties(data)) == list(expected)
    assert (found_tags, found_keys) == (expected.get("TAGS"), expected.get("KEYS"))
    assert uniq_key == expected.get("UNIQ_KEY")
    assert data == b"" or data.endswith(b"\x02")


def test_a_property_without_a_value_replaces_none_that_has_one():
    """For RocketMQ it is not a property; alone it is kept."""
    assert decode_properties(b"a\x011\x02b\x01\x02a\x01\x02c\x01\x02c\x012\x02") == {"a": "1", "b": "", "c": "2"}


def test_keys_may_be_one_string_of_words():
    """Like in RocketMQ."""
    assert message_properties(Message("t", b"", keys="k1 k2"))[0] == b"KEYS\x01k1 k2\x02"
    assert message_properties(Message("t", b"", keys=["k1", "k2"]))[0] == b"KEYS\x01k1 k2\x02"
    assert message_properties(Message("t", b"", keys=(key for key in ("k1", "k2"))))[0] == b"KEYS\x01k1 k2\x02"


def test_a_message_without_anything_has_no_properties():
    """Not even a separator."""
    assert message_properties(Message("t", b"")) == (b"", None, None, None)
    assert message_properties(Message("t", b"", properties={})) == (b"", None, None, None)


@given(st.text(max_size=30))
def test_a_topic_is_legal_or_refused_with_its_name(topic):
    """Letters, digits and four signs are allowed; other names are refused, and never become a path."""
    if topic and LEGAL.issuperset(topic):
        assert check_topic(topic) == topic.encode("ascii")
    else:
        with pytest.raises(MessageIllegal) as caught:
            check_topic(topic)
        assert repr(topic) in str(caught.value)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "%DLQ%group", "a|b", "A_b-9", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topics_as_rocketmq_has_them_are_legal(topic):
    """Including its internal ones."""
    assert check_topic(topic) == topic.encode()
