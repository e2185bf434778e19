"""Signing as RocketMQ's clients do it, written anew from their sources, for tests of accounts."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

__all__ = ["go_signed", "java_signed"]


def java_signed(
    fields: Mapping[str, str], body: bytes, access_key: str, secret_key: str, token: str | None = None
) -> dict[str, str]:
    """Return the fields that AclClientRPCHook.doBeforeRequest leaves: it signs a SortedMap of all fields."""
    signed = {**fields, "AccessKey": access_key}
    if token is not None:
        signed["SecurityToken"] = token
    content = "".join(signed[name] for name in sorted(signed) if name != "Signature").encode() + body
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    return {**signed, "Signature": base64.b64encode(digest).decode()}


def go_signed(
    fields: Mapping[str, str], body: bytes, access_key: str, secret_key: str, token: str | None = None
) -> dict[str, str]:
    """Return the fields that the interceptor of rocketmq-client-go leaves: the token is added unsigned."""
    order = sorted([*fields, "AccessKey"])
    buffer = bytearray()
    for name in order:
        buffer += (access_key if name == "AccessKey" else fields[name]).encode()
    buffer += body
    signature = base64.b64encode(hmac.new(secret_key.encode(), bytes(buffer), hashlib.sha1).digest()).decode()
    signed = {**fields, "Signature": signature, "AccessKey": access_key}
    return signed if token is None else {**signed, "SecurityToken": token}
