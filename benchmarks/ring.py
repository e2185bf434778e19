"""The ring's figures as JSON: ``python benchmarks/ring.py`` in a checkout, `reput bench ring` where it is installed."""

from __future__ import annotations

import json

from reput.bench.ring import measure_ring

if __name__ == "__main__":
    print(json.dumps(measure_ring(), indent=2))
