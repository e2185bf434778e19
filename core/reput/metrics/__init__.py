"""Metrics for Prometheus: of a store that this process has open, or that it only reads.

    StoreEngine, ReadOnlyEngine ──▶ read_figures ──▶ StoreCollector ──▶ prometheus_client ──▶ GET /metrics

Nothing is counted for a metric alone, except how long a force of the log takes: a scrape reads what the store knows.
"""
