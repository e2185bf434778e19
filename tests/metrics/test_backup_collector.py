"""The metrics of a backup that follows a store."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from reput.metrics.backup_collector import BackupCollector

AGE = "reput_backup_timestamp_seconds"


def test_a_backup_that_has_not_looked_at_the_store_yet_has_the_age_of_the_targets_newest_backup():
    """One that fails and is started again and again has an age to alert on; only a first backup has none."""
    again, first = CollectorRegistry(), CollectorRegistry()
    collector = BackupCollector(5_000)
    again.register(collector)
    first.register(BackupCollector())
    assert (again.get_sample_value(AGE), first.get_sample_value(AGE)) == (5.0, None)
    collector.end_look()
    assert again.get_sample_value(AGE) == collector.look_began
