"""`reput export`."""

from __future__ import annotations

import json
import signal

import pytest

from reput.cli import main
from reput.cli.verbs import export
from reput.errors import DispatcherError
from reput.plugin_jobs import find_export


@pytest.mark.spark
@pytest.mark.usefixtures("spark_classes")
def test_every_record_is_in_the_table_once(golden_read_only, golden_about, tmp_path, capsys):
    """A second run finds nothing to do."""
    store, lake = golden_read_only("batch-4.9") / "store", tmp_path / "lake"
    command = ["export", str(store), str(lake), "--format", "json", "--set", "spark.master=local[1]"]
    reports = []
    for _ in range(2):
        assert main(command) == 0
        reports.append(json.loads(capsys.readouterr().out))
    first, second = reports
    about = golden_about("batch-4.9")
    assert list(first) == ["from", "until", "records", "files", "bytes", "seconds", "table_version", "damage", "tables"]
    assert first["records"] == about["listing"]["records"]
    assert first["until"] == about["maxOffsetOfRealStore"]
    assert (second["records"], second["files"], second["table_version"]) == (0, 0, first["table_version"])


def test_nothing_is_made_without_a_store(tmp_path, capsys):
    """Exit code 3, and no folder for the lake."""
    assert main(["export", str(tmp_path / "absent"), str(tmp_path / "lake")]) == 3
    assert "absent" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_settings_reach_the_export(monkeypatch, golden_read_only, tmp_path, capsys):
    """Spark's settings from --set, the topics by option; the report also has a text form."""
    calls = []

    def run(store, lake, **options):
        options.pop("on_progress")(1, 2)
        calls.append((store, lake, options))
        row = {"from": 0, "until": 9, "records": 3, "files": 1, "bytes": 8, "seconds": 1.25, "table_version": 4}
        return {**row, "tables": [], "damage": [{"from": 2, "until": 5, "reason": "a CRC does not match"}]}

    monkeypatch.setattr(export, "find_export", lambda name: run)
    store = golden_read_only("batch-4.9") / "store"
    given = ["--topic", "a", "--topic", "b", "--set", "spark.master=local[1]", "--storage-option", "AWS_X=a=b"]
    given += ["--on-corruption", "report", "--store-id", "broker-a", "--accept-truncation"]
    given += ["--name", "orders", "--accept-data-loss"]
    given += ["--lake-format", "iceberg", "--catalog", "mine", "--catalog-table", "sales.log"]
    assert main(["export", str(store), "s3://lakes/a", *given]) == 0
    options = {"topics": ["a", "b"], "settings": {"spark.master": "local[1]"}, "storage_options": {"AWS_X": "a=b"}}
    options |= {"on_corruption": "report", "store_id": "broker-a", "accept_truncation": True}
    options |= {"name": "orders", "fail_on_data_loss": False, "tables": None}
    options |= {"lake_format": "iceberg", "catalog": "mine", "catalog_table": "sales.log"}
    assert calls == [(store, "s3://lakes/a", options)]
    out = (
        "3 records in 1 files of 8 bytes, from 0 until 9, in 1.2 s; table version 4; "
        "left out as damaged: 2..5 (a CRC does not match)\n"
    )
    assert capsys.readouterr().out == out


def test_a_storage_option_has_a_name_and_a_value(golden_read_only, tmp_path, capsys):
    """Otherwise it is refused; a possible secret is not printed."""
    store = golden_read_only("batch-4.9") / "store"
    assert main(["export", str(store), str(tmp_path), "--storage-option", "=secret"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_following_prints_a_row_for_each_transaction(monkeypatch, golden_read_only, tmp_path, capsys):
    """With rate and lag; it ends in order, also by SIGTERM."""
    ended = []

    def run(store, lake, **options):
        try:
            row = {"from": 0, "until": 3_000_000, "records": 3, "files": 1, "bytes": 8, "seconds": 1.5, "damage": []}
            yield {**row, "table_version": 4, "lag_bytes": 7, "lag_messages": 1, "lag_seconds": 0.25, "tables": []}
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended.append(lake)

    monkeypatch.setattr(export, "find_export", lambda name: run if name == "delta_follow" else None)
    store, before = golden_read_only("batch-4.9") / "store", signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exited:
        main(["export", str(store), str(tmp_path), "--follow"])
    assert exited.value.code == 0
    assert ended == [str(tmp_path)]
    assert signal.getsignal(signal.SIGTERM) == before
    assert "table version 4; 2.0 MB/s of the log, 1 messages of 7 bytes and 0.2 s behind\n" in capsys.readouterr().out


def test_an_export_that_nobody_brings_is_refused():
    """By name."""
    with pytest.raises(DispatcherError, match="export=iceberg"):
        find_export("iceberg")
