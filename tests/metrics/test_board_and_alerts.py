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
    assert names or "up{job=" in expression
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


def flat(*runs: tuple[int, int]) -> str:
    """Return a series as promtool writes it: values with how many samples each has, one every 15 seconds."""
    return " ".join(f"{value}+0x{count - 1}" for value, count in runs)


LAG = 'rocketmq_consumer_lag_messages{instance="a",consumer_group="g",topic="t",is_system="false"}'
# Alerts: a series for whose last sample it fires, and one for whose last sample it does not.
SERIES = {
    "ReputDown": ('up{job="reput"}', flat((1, 20), (0, 8)), flat((1, 20), (0, 2), (1, 2))),
    # Started again and again, because its disk is full, and reached now and then.
    "ReputBackupDown": ('up{job="reput-backup"}', flat(*[(0, 6), (1, 1)] * 20), flat((1, 80), (0, 20))),
    "ReputBackupIsOld": ("reput_backup_timestamp_seconds", flat((0, 50)), "0+15x50"),
    "ReputViewMissesMessages": ("reput_dispatcher_gap_bytes", flat((0, 30), (4096, 8)), flat((4096, 80))),
    "ReputGroupBehind": (LAG, "9000+100x120", "90000-100x120"),
    "ReputQuotaRefuses": ('reput_quota_refused_total{kind="topic"}', "0+1x200", f"0+1x100 {flat((101, 60))}"),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
@pytest.mark.parametrize("alert", SERIES)
def test_an_alert_fires_when_it_should_and_not_otherwise(tmp_path, alert):
    """Prometheus evaluates the rule on a series of each kind."""
    name, *series = SERIES[alert]
    cases = []
    for values, fires in zip(series, (1, 0), strict=True):
        count = sum(int(run.rpartition("x")[2]) + 1 for run in values.split())
        firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        cases.append(
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values}],
                "promql_expr_test": [
                    {
                        "expr": firing,
                        "eval_time": f"{15 * (count - 1)}s",
                        "exp_samples": [{"labels": "{}", "value": fires}],
                    }
                ],
            }
        )
    case = tmp_path / "case.yml"
    case.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": cases}))
    checked = subprocess.run(["promtool", "test", "rules", case], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
