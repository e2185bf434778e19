"""TLS: the certificate of a server, the modes of a port, and the authorities that a client trusts.

    disabled      plain connections only
    permissive    the first byte decides: 0x16 begins TLS, anything else a frame
    enforcing     TLS only

No frame begins with 0x16: its length would be beyond 369 MB.

Source: RocketMQ remoting, TlsMode, TlsSystemConfig and TlsHelper.
"""

from __future__ import annotations

import ssl
from typing import Literal

import msgspec

from reput.errors import ConfigError

__all__ = ["HANDSHAKE_BYTE", "ServerTls", "TlsOptions", "client_context"]

HANDSHAKE_BYTE = b"\x16"
CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server encrypts. Paths name files in PEM.

    Attributes:
        trust_cert_path: the authorities that sign the certificates of clients.
    """

    mode: Literal["permissive", "enforcing"] = "permissive"
    cert_path: str
    key_path: str = ""
    key_password: str = ""
    need_client_auth: Literal["none", "optional", "require"] = "none"
    trust_cert_path: str = ""

    def context(self) -> ssl.SSLContext:
        """Return a context with the certificate that the files hold now.

        Raises:
            ConfigError: a file cannot be read, or the key is not that of the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Pass the password even if it is empty: otherwise OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.cert_path, self.key_path or None, lambda: self.key_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the certificate cannot be used: tls_server_cert_path={self.cert_path} "
                f"tls_server_key_path={self.key_path} reason={error}",
                "Name a certificate and its own key, both in PEM.",
            ) from None
        if self.trust_cert_path:
            trust(context, "tls_server_trust_cert_path", self.trust_cert_path)
        context.verify_mode = CLIENT_AUTH[self.need_client_auth]
        return context


class ServerTls:
    """The encryption of one server. Used in the thread of its loop only.

    Attributes:
        context: for connections that are accepted from now on; earlier connections keep their own.
    """

    def __init__(self, options: TlsOptions) -> None:
        """Read the certificate.

        Raises:
            ConfigError: the certificate cannot be used.
        """
        self.options = options
        self.context = options.context()

    def reload(self) -> None:
        """Read the certificate again.

        Raises:
            ConfigError: the certificate cannot be used; new connections still get the former one.
        """
        self.context = self.options.context()


def client_context(*, trust_cert_path: str = "", cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """Return a context for connections to brokers and name servers.

    Args:
        trust_cert_path: the authorities that have signed the servers' certificates; "": accept any certificate, as
            RocketMQ's clients do by default.
        cert_path, key_path: the client's own certificate, if servers ask for one.

    Raises:
        ConfigError: a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Clients use brokers' IP addresses, which certificates seldom name.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if trust_cert_path else ssl.CERT_NONE
    if trust_cert_path:
        trust(context, "trust_cert_path", trust_cert_path)
    if cert_path:
        try:
            context.load_cert_chain(cert_path, key_path or None)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the certificate cannot be used: cert_path={cert_path} key_path={key_path} reason={error}"
            ) from None
    return context


def trust(context: ssl.SSLContext, name: str, path: str) -> None:
    """Trust the authorities of a file.

    Raises:
        ConfigError: the file cannot be read, or holds no authorities.
    """
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the authorities cannot be read: {name}={path} reason={error}") from None
