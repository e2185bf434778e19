"""EtcdAccess: how a node reaches etcd: encrypted or not, and as which user.

    etcds://     TLS; the authorities of ETCDCTL_CACERT, or the system's
    ETCDCTL_CERT, ETCDCTL_KEY         the node's own certificate, if etcd asks for one
    ETCDCTL_USER, ETCDCTL_PASSWORD    the user, also as NAME:PASSWORD in the first

The variables are those of etcdctl. They are no options: the command lines of processes can be read by every user of the
machine.

Source: etcd, etcdctl/README.md.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping

import msgspec

from reput.errors import ConfigError

__all__ = ["PLAIN", "EtcdAccess", "access_of_environment"]

CA, CERT, KEY = "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"
USER, PASSWORD = "ETCDCTL_USER", "ETCDCTL_PASSWORD"


class EtcdAccess(msgspec.Struct, frozen=True):
    """How a node reaches etcd.

    Attributes:
        tls: encrypts connections; None: they are not encrypted.
        user: "": requests name none.
    """

    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""

    def connection(self, address: tuple[str, int], timeout: float) -> http.client.HTTPConnection:
        """Return a connection to be opened."""
        if self.tls is None:
            return http.client.HTTPConnection(*address, timeout=timeout)
        return http.client.HTTPSConnection(*address, timeout=timeout, context=self.tls)


PLAIN = EtcdAccess()


def access_of_environment(environment: Mapping[str, str], *, encrypts: bool) -> EtcdAccess:
    """Return what the variables of *environment* say.

    Raises:
        ConfigError: they contradict each other, or a file cannot be read.
    """
    user, colon, password = environment.get(USER, "").partition(":")
    password = password if colon else environment.get(PASSWORD, "")
    if bool(user) != bool(password):
        raise ConfigError(
            f"a user of etcd needs a name and a password: {USER}={user!r} password={'given' if password else None}",
            f"Set {USER} and {PASSWORD}, or {USER} to NAME:PASSWORD.",
        )
    if not encrypts:
        if environment.get(CA) or environment.get(CERT):
            raise ConfigError(
                f"a certificate for etcd has no effect without TLS: {CA}={environment.get(CA)} "
                f"{CERT}={environment.get(CERT)}",
                "Write etcds:// in the lease.",
            )
        return EtcdAccess(None, user, password)
    return EtcdAccess(context_of(environment), user, password)


def context_of(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Return the encryption that the variables of *environment* name.

    Raises:
        ConfigError: a file cannot be read.
    """
    files = {name: environment.get(name) or None for name in (CA, CERT, KEY)}
    try:
        context = ssl.create_default_context(cafile=files[CA])
        if (certificate := files[CERT]) is not None:
            context.load_cert_chain(certificate, files[KEY])
    except OSError as error:
        named = " ".join(f"{name}={value}" for name, value in files.items())
        raise ConfigError(f"a certificate for etcd cannot be read: {named} reason={error}") from None
    return context
