"""Boards made for RocketMQ: what its broker shows on them, reput shows as well, or docs/metrics.md says not."""

from __future__ import annotations

import pytest

from metrics.rocketmq_metrics import BOARDS, NOT_HERE, SERVED
from reput.metrics.metric_list import METRICS
from source_tree import ROOT

EVERYWHERE = {"cluster", "node_type", "node_id", "instance", "job", "le"}


def is_answered(query: tuple[str, ...], served: dict[str, tuple[str, ...]]) -> bool:
    """Tell whether a broker that serves these metrics gives what a query asks for."""
    metric, *labels = query
    return metric in served and {*labels} <= {*served[metric], *EVERYWHERE}


@pytest.mark.parametrize("board", BOARDS)
def test_each_query_of_rocketmqs_boards_that_its_broker_answers_is_answered_here(board):
    """The board works unchanged. Other queries ask for names of the older exporter, which no broker has."""
    ours = {name: metric.labels for name, metric in METRICS.items()}
    for query in BOARDS[board]:
        assert is_answered(query, ours) == is_answered(query, SERVED), query


def test_the_boards_have_queries_of_both_kinds():
    """Some are answered: else this would compare nothing with nothing."""
    answers = [is_answered(query, SERVED) for queries in BOARDS.values() for query in queries]
    assert 10 <= sum(answers) < len(answers)


def test_what_rocketmqs_broker_has_and_reput_has_not_is_said():
    """By name, on the page about metrics."""
    missing = {name for name in SERVED if name not in METRICS}
    missing |= {label for name, labels in SERVED.items() if name in METRICS for label in labels} - {
        label for name in SERVED if name in METRICS for label in METRICS[name].labels
    }
    assert missing == NOT_HERE
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    named = page.partition("Not available:")[2].partition("\n\n")[0]
    assert {name for name in missing if f"`{name}`" not in named and not name.startswith("rocketmq_pop_")} == set()
    assert "`rocketmq_pop_*`" in named
