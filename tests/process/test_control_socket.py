"""Where the control socket lies, and what is said when nobody listens."""

from __future__ import annotations

import os
import socket

import pytest

from reput.errors import DispatcherError
from reput.process.control_socket import (
    ControlSocket,
    connect_observer,
    control_socket_path,
    group_status,
    request,
)

pytestmark = pytest.mark.usefixtures("runtime_directory")


def test_its_name_is_short_whatever_the_stores_path(tmp_path, runtime_directory):
    """A socket's name has about a hundred bytes."""
    store = tmp_path / ("x" * 200) / ("y" * 200)
    store.mkdir(parents=True)
    path = control_socket_path(store)
    assert path.parent == runtime_directory / "reput"
    assert len(path.name) == 21
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_all_ways_to_a_store_lead_to_one_socket(tmp_path):
    """The real path counts."""
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    assert control_socket_path(tmp_path / "link") == control_socket_path(tmp_path / "store")
    assert control_socket_path(tmp_path) != control_socket_path(tmp_path / "store")


def test_without_a_runtime_directory_a_private_folder_serves(tmp_path, monkeypatch):
    """Below the temporary directory, for this user alone."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = control_socket_path(tmp_path)
    assert path.parent == tmp_path / f"reput-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_runtime_directory_that_is_not_there_is_not_made(tmp_path, monkeypatch):
    """It is the system's to make; the temporary directory serves instead."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nothing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert control_socket_path(tmp_path).parent == tmp_path / f"reput-{os.getuid()}"
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_others_may_enter_is_refused(tmp_path, runtime_directory):
    """Somebody could have put a socket of his own there."""
    (runtime_directory / "reput").mkdir(parents=True)
    (runtime_directory / "reput").chmod(0o755)
    with pytest.raises(DispatcherError, match="not private"):
        control_socket_path(tmp_path)


def test_without_a_group_nothing_answers(tmp_path):
    """Status and observer are None, a command is refused."""
    assert group_status(tmp_path) is None
    assert connect_observer(tmp_path) is None
    with pytest.raises(DispatcherError, match="no process group runs"):
        request(tmp_path, "pause", "index")


def test_stale_sockets_go(tmp_path):
    """A start removes what killed groups have left. Those of groups that run stay, also of one that does not answer."""
    running = ControlSocket(tmp_path / "running")
    for name in ("killed", "again"):
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(control_socket_path(tmp_path / name)))
        dead.listen(1)
        dead.close()
    busy = socket.socket(socket.AF_UNIX)
    busy.bind(str(control_socket_path(tmp_path / "busy")))
    busy.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(str(control_socket_path(tmp_path / "busy")))
    started = ControlSocket(tmp_path / "again")
    left = {control_socket_path(tmp_path / name) for name in ("running", "again", "busy")}
    assert set(started.path.parent.iterdir()) == left
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(started.path))
    started.close()
    running.close()
    assert set(started.path.parent.iterdir()) == {control_socket_path(tmp_path / "busy")}
    for opened in (busy, waiting, client):
        opened.close()
