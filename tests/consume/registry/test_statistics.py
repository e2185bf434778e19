"""Statistics of puts and consumption, and the part that is sent to another process."""

from __future__ import annotations

import msgspec

from reput.consume.registry.statistics import GroupRow, StoreStatistics, TopicRow, within


def statistics(topic_count, group_count):
    """Return statistics of this many topics and groups; later ones are busier."""
    topics = [TopicRow(f"topic-{number}", number, 1) for number in range(topic_count)]
    groups = [GroupRow(f"group-{n}", "orders", n, 1, 0, 0, None, None, None) for n in range(group_count)]
    return StoreStatistics(0, None, topics, groups, None, None)


def test_an_ordinary_store_is_told_whole():
    """Nothing is left out."""
    whole = statistics(100, 100)
    assert within(whole, 1 << 20) == whole


def test_of_very_many_topics_and_groups_the_busiest_are_told():
    """In order, with the number of missing ones; the size of the answer is limited."""
    told = within(statistics(20_000, 5_000), 100_000)
    assert len(msgspec.json.encode(told)) < 202_000
    assert len(told.topics) + told.topics_left_out == 20_000
    assert [row.put_nums for row in told.topics] == list(range(told.topics_left_out, 20_000))
    assert len(told.groups) + told.groups_left_out == 5_000
    assert [row.get_nums for row in told.groups] == list(range(told.groups_left_out, 5_000))
