"""RocketMQ's own Java client over TLS and with an account, as its AclClientRPCHook signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from certificates import write_certificate
from interop.java_program import JVM_OPTIONS, OLDER_VERSIONS, built_program, java_command
from serving import served

pytestmark = pytest.mark.java

PROGRAM = Path(__file__).with_name("java") / "ProtectedClient.java"
ACCOUNT = ("orders-key", "orders-secret")
ACCOUNTS = {
    "accounts": [
        {
            "accessKey": ACCOUNT[0],
            "secretKey": ACCOUNT[1],
            "defaultGroupPerm": "SUB",
            "topicPerms": ["orders=PUB|SUB"],
        }
    ]
}
WORDS = ("sent", "batch", "found", "forbidden", "consumed")
LIMIT_S = 240


@pytest.mark.parametrize("version", OLDER_VERSIONS)
@pytest.mark.parametrize(
    "is_encrypted", [pytest.param(True, id="tls"), pytest.param(False, id="plain", marks=pytest.mark.long)]
)
def test_the_java_client_with_an_account(tmp_path, version, is_encrypted):
    """It sends, queries by unique key and consumes; what its account may not do is refused with code 1."""
    # Skips where Java or Maven is missing.
    java_command(version, tmp_path)
    certificate = write_certificate(tmp_path, "server")
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(yaml.safe_dump(ACCOUNTS))
    settings = {
        "acl_enable": True,
        "acl_file": str(accounts),
        "tls_server_mode": "enforcing" if is_encrypted else "disabled",
        "tls_server_cert_path": str(certificate.cert),
        "tls_server_key_path": str(certificate.key),
    }
    with served(tmp_path / "store", **settings) as broker:
        command = [
            *("java", *JVM_OPTIONS, f"-Duser.home={tmp_path}", f"-Dtls.enable={str(is_encrypted).lower()}"),
            *("-cp", f"{built_program(version) / 'lib'}/*", str(PROGRAM), f"127.0.0.1:{broker.address[1]}", *ACCOUNT),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    # RocketMQ 5's logging writes there, too.
    assert [line for line in done.stdout.splitlines() if line.partition(" ")[0] in WORDS] == [
        "sent SEND_OK",
        "batch SEND_OK",
        "found body",
        "forbidden 1",
        "consumed 3",
    ], done.stderr
