"""Subscriptions by tags."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.filter import FilterSyntaxError, parse_plain_tags, parse_tags
from reput.filter.string_hash import string_hash
from rocketmq_vectors import store_vectors


@pytest.mark.parametrize("expression", ["", "*"])
def test_the_star_and_the_empty_text_take_everything(expression):
    """Regardless of the unit's tags code."""
    wanted = parse_tags(expression)
    assert wanted.expression == "*"
    assert wanted.matches_tags_code(0)
    assert wanted.matches_tags_code(string_hash("any"))
    assert wanted.matches_tag("any")
    assert wanted.matches_tag(None)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB", {"TagA", "TagB"}),
        ("||a||\t b\x01||", {"a", "b"}),
        ("a || a", {"a"}),
        ("a | b", {"a | b"}),
        ("|||", {"|"}),
        ("*||a", {"*", "a"}),
        ("\u00a0a", {"\u00a0a"}),
        (" ", set()),
        ("|| ", set()),
    ],
)
def test_tags_are_what_stands_between_the_separators(expression, tags):
    """Surrounding blanks in Java's sense, all characters up to the space, are removed."""
    wanted = parse_tags(expression)
    assert wanted.tags == tags
    assert wanted.codes == {string_hash(tag) for tag in tags}
    assert wanted.expression == expression


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_alone_are_refused(expression):
    """RocketMQ refuses them too: "subString split error"."""
    with pytest.raises(FilterSyntaxError, match="separators alone"):
        parse_tags(expression)


@store_vectors("tags_code")
def test_the_tags_code_of_a_message_finds_its_subscription(vector):
    """Except for delayed messages, whose tags code is a time, and for messages without a tag."""
    tag = vector["input"]["tags"]
    if not tag or vector["input"]["topic"] == "SCHEDULE_TOPIC_XXXX":
        assert not parse_tags("TagA || TagB").matches_tags_code(vector["expected"]["tagsCode"])
    else:
        assert parse_tags(f"x || {tag}").matches_tags_code(vector["expected"]["tagsCode"])


def test_a_collision_passes_the_queue_and_is_caught_with_the_record():
    """Two tags may have the same hash."""
    wanted = parse_tags("AaAa")
    assert wanted.matches_tags_code(string_hash("BBBB"))
    assert not wanted.matches_tag("BBBB")
    assert not wanted.matches_tag(None)
    assert wanted.matches_tag("AaAa")


def test_only_the_lower_32_bits_of_a_tags_code_count():
    """A queue unit holds 64, and Java casts them."""
    wanted = parse_tags("polygenelubricants")
    assert wanted.codes == {-(2**31)}
    assert wanted.matches_tags_code(-(2**31))
    assert wanted.matches_tags_code(2**31)
    assert wanted.matches_tags_code(2**40 + 2**31)
    assert not wanted.matches_tags_code(0)


def test_a_tags_code_that_nobody_knows_matches():
    """The unit refers to an ext unit that is gone: the record decides."""
    assert parse_tags("TagA").matches_tags_code(None)


def test_a_subscription_to_no_tag_at_all_finds_nothing_in_the_queue():
    """Like in RocketMQ: its text is not the star, and it has no codes."""
    wanted = parse_tags(" ")
    assert not wanted.matches_tags_code(0)
    assert wanted.matches_tag("any")


@given(st.text(max_size=40))
def test_any_text_is_a_subscription_or_separators(expression):
    """It can be pickled for another process."""
    if expression and not expression.replace("||", ""):
        with pytest.raises(FilterSyntaxError):
            parse_tags(expression)
    else:
        wanted = parse_tags(expression)
        assert pickle.loads(pickle.dumps(wanted)) == wanted


@pytest.mark.parametrize("text", ["price > 5", "a or b", "a,b", "a | b", "a|b", "type = 'x'", "a && b", "(a)"])
def test_what_looks_like_an_expression_is_not_taken_for_tags(text):
    """As tags it would never match; the error says how to give an expression."""
    with pytest.raises(FilterSyntaxError, match=r"reput\.filter\.parse") as raised:
        parse_plain_tags(text)
    assert raised.value.position > 0 or text[0] == "("


@pytest.mark.parametrize("text", ["", "*", "paid", " paid ", "a || b", "a||b", "||a", "ß-1_x.y/z:β%", "支付 || 已付"])
def test_plain_tags_are_what_rocketmq_takes_them_for(text):
    """Blanks around a tag, and extra separators, change nothing."""
    assert parse_plain_tags(text) == parse_tags(text)
