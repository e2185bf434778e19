"""deploy/: the Grafana board and the alert rules use metrics that exist, in expressions that Prometheus takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml

from reput.metrics import metric_list
from source_tree import ROOT

BOARD = ROOT / "deploy" / "grafana" / "reput.json"
ALERTS = ROOT / "deploy" / "prometheus" / "reput-alerts.yml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
METRICS = {**metric_list.METRICS, **metric_list.BACKUP_METRICS}
USED = re.compile(r"\b(?:reput|rocketmq)_[a-z_]+")
LABELS = re.compile(r"\b((?:reput|rocketmq)_[a-z_]+)\{([^}]*)\}")
EVERYWHERE = {"instance", "job", "le", "cluster", "node_type", "node_id"}


def expressions() -> list[str]:
    """Return every expression of the board and the rules."""
    panels = json.loads(BOARD.read_text("utf-8"))["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    assert len(shown) > 20
    assert len(rules) > 10
    return shown + rules


def metric_of(name: str) -> str:
    """Return the metric of a series: a histogram has one per bucket, a sum and a count."""
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in METRICS else name


@pytest.mark.parametrize("expression", expressions())
def test_a_board_and_an_alert_use_metrics_and_labels_that_exist(expression):
    """A panel that asks for a name that nobody gives stays empty, and an alert never fires."""
    names = [metric_of(name) for name in USED.findall(expression)]
    assert names or expression.startswith("up{")
    assert {*names} <= METRICS.keys()
    for name, matchers in LABELS.findall(expression):
        labels = {re.split("[=!]", matcher)[0] for matcher in matchers.split(",") if "=" in matcher}
        assert labels <= {*METRICS[metric_of(name)].labels, *EVERYWHERE}


def test_every_alert_says_how_urgent_it_is_and_what_to_do():
    """A person who is woken needs both."""
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert {*rule["annotations"]} == {"summary", "action"}


def test_the_page_about_production_lists_every_alert_by_its_urgency():
    """In the table of those that wake a person, or of those that wait."""
    text = (ROOT / "docs" / "production.md").read_text("utf-8")
    tables = text.partition("## What to alert on")[2].partition("\n## ")[0].split("| waits for the morning |")
    pages, tickets = (re.findall(r"`(Reput\w+)`", table) for table in tables)
    rules = [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    for severity, listed in (("page", pages), ("ticket", tickets)):
        assert sorted(listed) == sorted(rule["alert"] for rule in rules if rule["labels"]["severity"] == severity)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
@pytest.mark.parametrize(("what", "path"), [("rules", ALERTS), ("config", CONFIG)], ids=["rules", "config"])
def test_prometheus_accepts_the_files(what, path):
    """As its own tool checks them."""
    checked = subprocess.run(["promtool", "check", what, path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
