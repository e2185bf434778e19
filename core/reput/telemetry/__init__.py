"""OpenTelemetry for a program that puts and receives messages: traces through message properties, and the metrics.

    Traces.put ── traceparent in the message ──▶ log ──▶ view ──▶ Traces.receive
        └─ span `send`      └─ span `dispatch`, its child              └─ span `process`, linked to `send`

Nothing of it is loaded or runs unless a program makes these objects. The program's own SDK decides what is sampled and
where it goes.
"""

from __future__ import annotations

from reput.telemetry.meters import observe_store
from reput.telemetry.traces import Traces

__all__ = ["Traces", "observe_store"]
