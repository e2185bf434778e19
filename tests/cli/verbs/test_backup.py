"""What `reput restore` says of a restore."""

from __future__ import annotations

from msgspec import to_builtins

from backing_up import make_backup, make_restore, put, writing
from reput.cli.verbs.backup import lost_text
from reput.store.recovery.repair import cut


def lost(target, store, **request) -> str:
    return lost_text(to_builtins(make_restore(target, store, **request)))


def test_a_restore_says_what_later_backups_have(tmp_path):
    """Whoever restores an earlier backup, time or offset is told that more could be had, and where from."""
    store, target = tmp_path / "store", tmp_path / "target"
    ends = []
    for _ in range(3):
        with writing(store) as writer:
            offsets = put(writer, 3)
        ends.append(make_backup(store, target).log_end)
    assert lost(target, tmp_path / "newest").startswith("lost: whatever was put after the newest backup, made ")
    assert lost(target, tmp_path / "last", offset=offsets[1]).startswith(
        f"lost: 2 records that backup 3 has behind offset {offsets[1]}, and whatever was put after the newest backup"
    )
    assert lost(target, tmp_path / "earlier", backup=1).startswith(
        f"lost: what later backups, up to 3, have from offset {ends[0]} on, and whatever was put after the newest"
    )
    assert lost(target, tmp_path / "empty", offset=0).startswith(
        f"lost: 3 records that backup 1 has behind offset 0, what later backups, up to 3, have from offset {ends[0]} "
        "on, and whatever was put after the newest backup, made "
    )


def test_a_restore_says_that_later_backups_have_another_history(tmp_path):
    """A later backup of a log that was cut has records that the earlier one has not, although it ends before it."""
    store, target = tmp_path / "store", tmp_path / "target"
    with writing(store) as writer:
        offsets = put(writer, 6)
    make_backup(store, target)
    cut(store, offsets[2])
    with writing(store) as writer:
        put(writer, 1)
    make_backup(store, target)
    assert f"what later backups, up to 2, have from offset {offsets[2]} on" in lost(target, tmp_path / "r", backup=1)
