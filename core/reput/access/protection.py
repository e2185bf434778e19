"""Protection: the encryption and the access control of a broker, from its settings."""

from __future__ import annotations

from pathlib import Path

from reput.access.access_control import AccessControl, auth, plain_acl
from reput.errors import ConfigError
from reput.remoting.tls import ServerTls, TlsOptions
from reput.settings import Settings

__all__ = ["access_control", "server_tls"]


def access_control(directory: Path, settings: Settings) -> AccessControl | None:
    """Return the access control of the store in *directory*; None: every client may do everything.

    Raises:
        ConfigError: the settings contradict each other, or the file of accounts cannot be used.
    """
    if settings.authorization_enabled and not settings.authentication_enabled:
        raise ConfigError(
            "policies need users: authorization_enabled=true authentication_enabled=false",
            "Set authentication_enabled as well.",
        )
    if settings.acl_enable and settings.authentication_enabled:
        raise ConfigError(
            "accounts of RocketMQ 4 exclude users of RocketMQ 5: acl_enable=true authentication_enabled=true",
            "Set only one of the two.",
        )
    if settings.acl_enable:
        return plain_acl(Path(settings.acl_file or directory / "config" / "plain_acl.yml"))
    if settings.authentication_enabled:
        path = Path(settings.auth_file or directory / "config" / "auth.yml")
        return auth(path, authorizes=settings.authorization_enabled)
    return None


def server_tls(settings: Settings) -> ServerTls | None:
    """Return the encryption that *settings* ask for; None: no encryption.

    Raises:
        ConfigError: enforced encryption has no certificate, or the certificate cannot be used.
    """
    mode = settings.tls_server_mode
    if mode == "disabled" or (mode == "permissive" and not settings.tls_server_cert_path):
        return None
    if not settings.tls_server_cert_path:
        raise ConfigError(
            "TLS needs a certificate: tls_server_mode=enforcing tls_server_cert_path=",
            "Set tls_server_cert_path and tls_server_key_path.",
        )
    if settings.tls_server_need_client_auth == "require" and not settings.tls_server_trust_cert_path:
        raise ConfigError(
            "no certificate of a client is accepted: tls_server_need_client_auth=require tls_server_trust_cert_path=",
            "Set tls_server_trust_cert_path to a file of authorities.",
        )
    return ServerTls(
        TlsOptions(
            mode=mode,
            cert_path=settings.tls_server_cert_path,
            key_path=settings.tls_server_key_path,
            key_password=settings.tls_server_key_password,
            need_client_auth=settings.tls_server_need_client_auth,
            trust_cert_path=settings.tls_server_trust_cert_path,
        )
    )
