"""A real Prometheus scrapes a broker and its backup, and answers what our board and RocketMQ's ask."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import reput
from command_line import REPUT
from delivering import LIMIT_S, wait_until
from metrics.rocketmq_metrics import BOARDS, SERVED
from source_tree import ROOT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]

DEPLOY = ROOT / "deploy"
# Panels that stay empty while nothing is wrong.
QUIET = ("state!=", "histogram_quantile", "send_to_dlq")
# A producer is known by its heartbeat, which comes later.
LATE = ("rocketmq_producer_connections",)


@contextmanager
def running(command: list[str | Path], pattern: str, stream: str = "stdout") -> Iterator[str]:
    """Run a program, and yield what it says after *pattern*; it is stopped at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            found = re.search(pattern, getattr(program, stream).readline())
            assert found is not None
            yield found[1]
        finally:
            program.terminate()
            program.communicate()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Prometheus:
    """One on a free port, which scrapes the addresses of jobs every second."""

    def __init__(self, folder: Path, jobs: dict[str, str]) -> None:
        folder.mkdir()
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DEPLOY / "prometheus" / "reput-alerts.yml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in jobs.items()
            ],
        }
        # YAML reads JSON.
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_port()}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={self.address}"]
        command.append(f"--storage.tsdb.path={folder / 'data'}")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except OSError:
            # It does not listen yet.
            return None

    def values(self, query: str) -> list[Any]:
        """Return the series that a query finds now."""
        data = self.ask("query", query=query)
        return [] if data is None else data["result"]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(LIMIT_S)


def test_prometheus_fills_our_board_and_what_rocketmqs_ask_for(tmp_path):
    """Both targets are up, every expression is valid, every panel has a series, and no alert fires."""
    store, target = tmp_path / "store", tmp_path / "backups"
    serve = [REPUT, "serve", store, "--listen", "127.0.0.1:0", "--name-server", "none", "--metrics", "127.0.0.1:0"]
    serve += ["--set", "mappedFileSizeCommitLog=65536", "--set", "brokerQuotas=topic=small messages=1"]
    follow = [REPUT, "backup", store, target, "--follow", "--metrics", "127.0.0.1:0"]
    metrics = r"metrics=http://([^/]+)/metrics"
    with running(serve, metrics) as broker, running(follow, metrics, "stderr") as backup:
        prometheus = Prometheus(tmp_path / "prometheus", {"reput": broker, "reput-backup": backup})
        try:
            with reput.connect(store) as client, client.consumer("billing", "orders") as consumer:
                client.put_batch([reput.Message("orders", b"a shirt")] * 5)
                consumer.ack(consumer.receive(LIMIT_S))
                wait_until(lambda: len(prometheus.values("up == 1")) == 2)
                wait_until(lambda: prometheus.values("rocketmq_messages_out_total > 0") != [])
                # A rate needs two scrapes.
                wait_until(lambda: prometheus.values("rate(reput_ring_published_bytes_total[1m])") != [])
                for expression in board_expressions():
                    found = prometheus.values(expression)
                    assert found or any(part in expression for part in (*QUIET, *LATE)), expression
                for metric, *labels in (query for queries in BOARDS.values() for query in queries):
                    if metric in SERVED and {*labels} <= {*SERVED[metric], "cluster"}:
                        (found,) = prometheus.values(f"count(sum by ({','.join(labels)}) (rate({metric}[1m])))")
                        assert int(found["value"][1]) >= 1
            rules = prometheus.ask("rules")["groups"][0]["rules"]
            assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
            assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()
        finally:
            prometheus.stop()


def board_expressions() -> list[str]:
    """Return the expressions of our board, with its variables replaced as Grafana does."""
    panels = json.loads((DEPLOY / "grafana" / "reput.json").read_text("utf-8"))["panels"]
    return [
        target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
        for panel in panels
        for target in panel.get("targets", ())
    ]
