"""What tests of the inline group share."""

from __future__ import annotations

from reput.process.dispatcher.states import State

TIMEOUT = 60.0


def state_of(group, name):
    """Return the state shown by `status`."""
    return next(row.state for row in group.status() if row.name == name)


def wait_for_state(group, name, *states):
    """Wait until a dispatcher is in one of *states*."""
    with group.ring.changed:
        assert group.ring.changed.wait_for(lambda: State(group.members[name].cell.state) in states, TIMEOUT)


def wait_for_change(group):
    """Wait until something in the group may have changed."""
    with group.ring.changed:
        group.ring.changed.wait(0.01)


def rejecting(log, plugins, context, inline, **options):
    """Return a group that rejected the second of four records, which it can now take in."""
    plugins.add("probe")
    log.put(3, body=b"poison")
    options = {"probe": {"reject_at": log.offsets[1], "reject_until": str(log.store_directory / "go"), **options}}
    group = inline(context("probe", options=options))
    group.wait_for("probe", log.put(1), TIMEOUT)
    group.drain_and_stop()
    return lambda: inline(context("probe", options=options))
