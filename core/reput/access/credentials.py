"""Credentials: how a client's connections are encrypted, and the account that signs its requests.

Source: RocketMQ client, AclClientRPCHook.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import NamedTuple

from reput.access.signature import signed_fields
from reput.argument_checks import require_path, require_text
from reput.errors import ConfigError
from reput.remoting.remoting_command import RemotingCommand
from reput.remoting.tls import client_context

__all__ = ["NO_CREDENTIALS", "Credentials", "account_of_environment", "credentials", "credentials_of_environment"]

PREFIX = "REPUT_"
# The arguments of `reput.connect` as variables of the environment. Not options: the command lines of processes can be
# read by every user of the machine.
VARIABLES = ("REPUT_TLS", "REPUT_ACCESS_KEY", "REPUT_SECRET_KEY")


class Credentials(NamedTuple):
    """How a client identifies itself: its account and its encryption. Any thread may use it.

    Attributes:
        tls: encrypts connections; None: connections are not encrypted.
        sign: completes a request with a signature; None: requests are not signed.
    """

    tls: ssl.SSLContext | None = None
    sign: Callable[[RemotingCommand], None] | None = None


NO_CREDENTIALS = Credentials()


def credentials(
    tls: ssl.SSLContext | str | os.PathLike[str] | None, access_key: str | None, secret_key: str | None
) -> Credentials:
    """Return the credentials for the arguments of `reput.connect`.

    Raises:
        ConfigError: one of the keys is missing, or the file of authorities cannot be read.
    """
    if (access_key is None) != (secret_key is None):
        raise ConfigError(
            f"an account needs both an access key and a secret key: access_key={access_key!r} "
            f"secret_key={'given' if secret_key is not None else None}",
            "Give both, or neither.",
        )
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        tls = client_context(trust_cert_path=str(require_path("tls", tls)))
    if access_key is None or secret_key is None:
        return Credentials(tls)
    require_text("access_key", access_key)
    require_text("secret_key", secret_key)
    account, key = access_key, secret_key.encode()

    def sign(command: RemotingCommand) -> None:
        command.ext_fields = signed_fields(command.ext_fields, command.body_bytes, account, key)

    return Credentials(tls, sign)


def account_of_environment() -> dict[str, str | None]:
    """Return the arguments *tls*, *access_key* and *secret_key* that the environment names."""
    return {name.removeprefix(PREFIX).lower(): os.environ.get(name) or None for name in VARIABLES}


def credentials_of_environment() -> Credentials:
    """Return the credentials that the environment names.

    Raises:
        ConfigError: as of `credentials`.
    """
    return credentials(**account_of_environment())
