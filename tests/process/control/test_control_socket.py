"""How a store's group is found, which users may ask it, and the errors if it does not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import msgspec
import pytest

from reput.errors import DispatcherError, GroupUnreachable
from reput.process.control import control_socket
from reput.process.control.control_messages import Reply
from reput.process.control.control_socket import (
    ControlSocket,
    abstract_address,
    connect_observer,
    group_status,
    owner_statistics,
    request,
)
from reput.process.group.group_lock import GroupLock
from reput.process.group.group_place import read_place, write_place


@pytest.fixture
def directory(tmp_path):
    """A store's directory whose path is longer than a socket's name can be, with a group's lock."""
    store = tmp_path / ("x" * 200) / ("y" * 200)
    (store / "reput").mkdir(parents=True)
    lock = GroupLock(store)
    assert lock.try_take()
    yield store
    lock.release()


def answer_once(listening, reply):
    """Accept one client in a separate thread, and answer it."""

    def serve():
        client = None
        while client is None:
            client = listening.accept()
        while not client.receive():
            pass
        client.send(reply)
        client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_group_is_found_through_the_stores_directory(directory, tmp_path, monkeypatch):
    """Whatever the path's length and the client's environment; also through a link."""
    listening = ControlSocket(directory)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nothing"))
    (tmp_path / "link").symlink_to(directory)
    thread = answer_once(listening, Reply(0, result=msgspec.Raw(b"5")))
    assert bytes(request(tmp_path / "link", "pause", "index")) == b"5"
    thread.join()
    listening.close()


def test_the_end_of_a_group_leaves_nothing(directory):
    """No file is left; the socket has no name in a file system."""
    ControlSocket(directory).close()
    assert sorted(os.listdir(directory / "reput")) == ["group.lock"]
    assert group_status(directory) is None


def test_what_a_killed_group_has_left_misleads_nobody(directory):
    """No process has the store open, so no group runs; the next group overwrites the file."""
    write_place(directory, "of-a-killed-one")
    assert group_status(directory) is None
    listening = ControlSocket(directory)
    assert read_place(directory).socket != "of-a-killed-one"
    listening.close()


def test_without_a_group_nothing_answers(tmp_path):
    """Status, statistics and observer are None; a command is refused."""
    assert group_status(tmp_path) is None
    assert connect_observer(tmp_path) is None
    assert owner_statistics(tmp_path) is None
    with pytest.raises(DispatcherError, match="no process group runs"):
        request(tmp_path, "pause", "index")


def test_a_group_that_does_not_answer_is_no_group_that_does_not_run(directory):
    """Its supervisor may be stopped by a signal, or wait for a disk."""
    listening = ControlSocket(directory)
    with pytest.raises(GroupUnreachable, match="does not answer in time"):
        group_status(directory, timeout=0.01)
    assert connect_observer(directory, timeout=0.01) is None
    listening.close()


LISTENER = """
import sys
from pathlib import Path
from reput.process.control.control_socket import ControlSocket
listening = ControlSocket(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_stopped_supervisor_is_not_waited_for(directory):
    """It cannot answer, so the client reports the stopped process at once, whatever its time limit."""
    command = [sys.executable, "-c", LISTENER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        supervisor.send_signal(signal.SIGSTOP)
        with pytest.raises(GroupUnreachable, match=f"its supervisor is stopped: supervisor_pid={supervisor.pid}"):
            group_status(directory, timeout=3600)
        assert connect_observer(directory, timeout=3600) is None
        supervisor.send_signal(signal.SIGCONT)
        supervisor.communicate(timeout=60)


def test_no_client_waits_for_room_without_an_end(directory, monkeypatch):
    """A stopped supervisor accepts no client, and finally no client can queue for it any more."""
    monkeypatch.setattr(control_socket, "CONNECT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(control_socket, "why_silent", lambda _: "it is silent")
    write_place(directory, name := f"reput-test-{os.getpid()}")
    full = socket.socket(socket.AF_UNIX)
    full.bind(abstract_address(name))
    full.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(abstract_address(name))
    with pytest.raises(GroupUnreachable, match="no more room"):
        group_status(directory)
    full.close()
    waiting.close()


def test_only_the_owner_and_root_are_answered(directory, monkeypatch):
    """The kernel identifies the client."""
    listening = ControlSocket(directory)
    address = abstract_address(read_place(directory).socket)
    for uid, taken in ((os.geteuid(), True), (0, True), (os.geteuid() + 1, False)):
        client = socket.socket(socket.AF_UNIX)
        client.connect(address)
        monkeypatch.setattr(control_socket, "peer", lambda _, uid=uid: (1, uid))
        channel = listening.accept()
        assert (channel is not None) == taken
        if channel is not None:
            channel.close()
        client.close()
    listening.close()


def test_another_users_group_is_not_asked_and_the_user_named(directory, monkeypatch):
    """Nor is a listener trusted that does not belong to the owner."""
    listening = ControlSocket(directory)
    stranger = os.geteuid() + 1
    monkeypatch.setattr(control_socket, "peer", lambda _: (77, stranger))
    with pytest.raises(GroupUnreachable, match=f"another user: supervisor_pid=77 uid={stranger}"):
        group_status(directory)
    listening.close()
