"""Signatures of requests: HMAC-SHA1 with an account's secret key.

    content     the values of all fields except Signature, in the order of the fields' names, then the body
    Signature   Base64(HMAC-SHA1(secret key, content))

Source: RocketMQ acl, AclClientRPCHook, AclUtils.combineRequestContent and AclSigner.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from reput.remoting.remoting_command import RemotingCommand

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "is_signed", "sign", "signed_fields"]

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
# Clients up to 4.9.3 add this field after they have signed.
UNIQUE_KEY_VERSION_MAX = 399


def sign(fields: Mapping[str, str], body: bytes, secret_key: bytes) -> str:
    """Return the signature of a request whose fields include the account's access key."""
    values = [fields[name] for name in sorted(fields) if name != SIGNATURE]
    content = "".join(values).encode("utf-8", "replace") + body
    return base64.b64encode(hmac.digest(secret_key, content, "sha1")).decode()


def is_signed(request: RemotingCommand, secret_key: bytes) -> bool:
    """Return whether a request is signed with *secret_key*. The comparison takes the same time for every signature."""
    fields = request.ext_fields
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    if request.version <= UNIQUE_KEY_VERSION_MAX and UNIQUE_KEY_QUERY in fields:
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    body = request.body_bytes
    if hmac.compare_digest(sign(fields, body, secret_key).encode(), given):
        return True
    if SECURITY_TOKEN not in fields:
        return False
    # The Go client adds its token after it has signed.
    fields = {name: value for name, value in fields.items() if name != SECURITY_TOKEN}
    return hmac.compare_digest(sign(fields, body, secret_key).encode(), given)


def signed_fields(fields: Mapping[str, str], body: bytes, access_key: str, secret_key: bytes) -> dict[str, str]:
    """Return the fields of a request with access key and signature, as a client sends them."""
    found = {**fields, ACCESS_KEY: access_key}
    return {**found, SIGNATURE: sign(found, body, secret_key)}
