"""TLS on the HA port, as seen by one side of a connection."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import closing

import pytest

from certificates import write_certificate
from reput.remoting.tls import client_context
from reput.replication.encrypted_socket import EncryptedSocket


@pytest.fixture
def server(tmp_path) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """The other side: its TLS, what came for it, and what it wants to send. A test decides which bytes go when."""
    made = write_certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing


def shake_hands(plain: socket.socket, server: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]) -> None:
    """Do the server's part of a handshake."""
    tls, incoming, outgoing = server
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(1 << 16))
        else:
            return


def test_a_wait_goes_on_while_what_comes_is_not_a_whole_record(server, monkeypatch):
    """A follower's request would be given up at once, as if its time had passed."""
    tls, _, outgoing = server
    ours, theirs = socket.socketpair()
    with theirs:
        hands = threading.Thread(target=shake_hands, args=(theirs, server))
        hands.start()
        with closing(EncryptedSocket(ours, client_context(), "127.0.0.1")) as encrypted:
            hands.join()
            # The tickets of the handshake, then the answer.
            tls.write(b"answer")
            sent = outgoing.read()
            pieces = [sent[:7], sent[7:-3], sent[-3:]]
            read_once = EncryptedSocket.read_once

            def read_then_send(self: EncryptedSocket, view: memoryview) -> int | None:
                count = read_once(self, view)
                if count is None and pieces:
                    theirs.sendall(pieces.pop(0))
                return count

            monkeypatch.setattr(EncryptedSocket, "read_once", read_then_send)
            encrypted.settimeout(60)
            buffer = bytearray(100)
            assert buffer[: encrypted.recv_into(buffer)] == b"answer"
            encrypted.settimeout(0)
            with pytest.raises(TimeoutError):
                encrypted.recv_into(buffer)
