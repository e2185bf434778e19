"""Names of settings for object stores. The Delta library ignores a setting whose name it does not know.

It knows more names than stand here, so only a name that resembles one of these, and is none, counts as misspelt.

Source: crate object_store, `AmazonS3ConfigKey`, `GoogleConfigKey`, `AzureConfigKey`, `ClientConfigKey`; delta-rs, "S3".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["NAMES", "misspelt_options"]

# How much of two names must agree: 1 is all.
RESEMBLANCE = 0.8
# The libraries take names in any case, and most of them without the store's name in front.
STORE_PREFIX = re.compile("^(aws|azure|google)_(s3_|storage_)?")
NAMES = frozenset(
    word
    for line in (
        # S3
        "access_key_id secret_access_key session_token token region default_region endpoint endpoint_url",
        "endpoint_url_s3 endpoint_url_sts endpoint_url_dynamodb region_dynamodb bucket bucket_name express profile",
        "virtual_hosted_style_request imdsv1_fallback metadata_endpoint unsigned_payload checksum_algorithm",
        "container_credentials_relative_uri container_credentials_full_uri container_authorization_token_file",
        "web_identity_token_file role_arn role_session_name iam_role_arn iam_role_session_name assume_role_arn",
        "skip_signature copy_if_not_exists conditional_put disable_tagging server_side_encryption sse_kms_key_id",
        "sse_bucket_key_enabled sse_customer_key_base64 request_payer locking_provider allow_unsafe_rename",
        "ec2_metadata_disabled force_credential_load get_internal_server_error_retries pool_idle_timeout_seconds",
        "sts_pool_idle_timeout_seconds",
        # Google's
        "service_account service_account_path service_account_key application_credentials",
        # Azure
        "account_name account_key access_key master_key client_id client_secret tenant_id authority_id authority_host",
        "authority_url sas_key sas_token bearer_token container_name use_emulator use_fabric_endpoint use_azure_cli",
        "msi_endpoint identity_endpoint object_id msi_resource_id federated_token_file",
        # Connections to each of them
        "allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_only",
        "http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size",
        "pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes randomize_addresses",
        "timeout user_agent max_retries retry_timeout backoff_config.init_backoff backoff_config.max_backoff",
        "backoff_config.base mount_allow_unsafe_rename object_store_concurrency_limit",
    )
    for word in line.split()
)


def misspelt_options(options: Iterable[str]) -> list[tuple[str, str]]:
    """Return those of *options* that are probably misspelt, each with the name that was meant."""
    found = []
    for option in options:
        name = option.lower()
        prefix = STORE_PREFIX.match(name)
        bare = name[prefix.end() :] if prefix else name
        if bare in NAMES or name in NAMES:
            continue
        for meant in difflib.get_close_matches(bare, NAMES, 1, RESEMBLANCE):
            found.append((option, option[: len(option) - len(bare)] + (meant.upper() if option.isupper() else meant)))
    return found
