"""Map delta-rs storage options to those of obstore. Pure: the environment is an argument."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from spark_mq.errors import InvalidOption
from spark_mq.util.validation import validate_duration

# The provider that the scheme of a root names.
PROVIDERS: Final = {
    "s3": "aws", "s3a": "aws", "gs": "google",
    "az": "azure", "abfs": "azure", "abfss": "azure", "adl": "azure", "azure": "azure",
}  # fmt: skip

# The options of a catalog, by the names of delta-rs. Those of one tuple mean the same.
CATALOG_URLS: Final = ("databricks_host", "databricks_workspace_url", "unity_workspace_url")
CATALOG_TOKENS: Final = ("databricks_token", "databricks_access_token", "unity_access_token")
ALLOW_HTTP_CATALOG: Final = "unity_allow_http_url"


@dataclass(frozen=True)
class StoreOptions:
    """The three option groups of an obstore store."""

    config: dict[str, str] = field(default_factory=dict)
    client_options: dict[str, str] = field(default_factory=dict)
    retry_config: dict[str, Any] = field(default_factory=dict)


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


# A provider's options without its prefix, and their names in obstore.
_CONFIG: Final = {
    "aws": {
        **_same(
            "access_key_id secret_access_key session_token region default_region endpoint"
            " imdsv1_fallback virtual_hosted_style_request unsigned_payload checksum_algorithm"
            " metadata_endpoint"
            " container_credentials_relative_uri container_credentials_full_uri"
            " container_authorization_token_file web_identity_token_file role_arn role_session_name"
            " skip_signature s3_express disable_tagging disable_bulk_delete copy_if_not_exists"
            " conditional_put request_payer server_side_encryption sse_kms_key_id"
            " sse_bucket_key_enabled sse_customer_key_base64 endpoint_url_sts"
        ),
        "token": "session_token", "endpoint_url": "endpoint", "sts_endpoint": "endpoint_url_sts",
        "s3_addressing_style": "virtual_hosted_style_request",
    },
    "azure": {
        **_same(
            "account_name account_key client_id client_secret tenant_id authority_host sas_key"
            " token use_emulator use_fabric_endpoint endpoint msi_endpoint object_id"
            " msi_resource_id"
            " federated_token_file use_azure_cli skip_signature disable_tagging credential_type"
            " encryption_key fabric_token_service_url fabric_workload_host fabric_session_token"
            " fabric_cluster_identifier"
        ),
        "access_key": "account_key", "master_key": "account_key", "authority_id": "tenant_id",
        "sas_token": "sas_key", "bearer_token": "token", "identity_endpoint": "msi_endpoint",
    },
    "google": {
        **_same("service_account service_account_key base_url bearer_token application_credentials"
                " skip_signature"),
        "service_account_path": "service_account",
    },
}  # fmt: skip

# The options that are paths of local files.
_FILES: Final = {
    "application_credentials", "container_authorization_token_file", "federated_token_file",
    "service_account", "web_identity_token_file",
}  # fmt: skip
# The options whose values may have several lines.
_DOCUMENTS: Final = {"proxy_ca_certificate", "root_certificate", "service_account_key"}
_CLIENT: Final = _same(
    "allow_http allow_invalid_certificates connect_timeout default_content_type http1_only"
    " http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle"
    " http2_max_frame_size http2_only pool_idle_timeout pool_max_idle_per_host proxy_url"
    " proxy_ca_certificate proxy_excludes randomize_addresses read_timeout root_certificate"
    " timeout user_agent"
)

_RETRY: Final = {
    "max_retries": "max_retries", "retry_timeout": "retry_timeout",
    **{f"{prefix}{name}": f"backoff.{name}" for prefix in ("", "backoff.", "backoff_config.")
       for name in ("init_backoff", "max_backoff", "base")},
}  # fmt: skip

# Options of delta-rs alone, and the bucket, which the root names.
_IGNORED: Final = _same(
    "aws_s3_allow_unsafe_rename allow_unsafe_rename mount_allow_unsafe_rename"
    " aws_s3_locking_provider aws_force_credential_load aws_ec2_metadata_disabled"
    " aws_ec2_metadata_timeout aws_s3_pool_idle_timeout_seconds"
    " aws_sts_pool_idle_timeout_seconds aws_s3_get_internal_server_error_retries"
    " aws_iam_role_session_name aws_s3_role_session_name aws_endpoint_url_dynamodb"
    " aws_region_dynamodb aws_access_key_id_dynamodb aws_secret_access_key_dynamodb"
    " aws_session_token_dynamodb delta_dynamo_table_name delta_dynamo_billing_mode"
    " delta_dynamo_max_elapsed_request_time object_store_concurrency_limit multi_threaded"
    " worker_threads thread_name enable_io enable_time max_size_memory_mb max_size_disk_mb"
    " directory aws_bucket aws_bucket_name bucket bucket_name google_bucket google_bucket_name"
    " container_name azure_container_name"
) | {name: name for name in (*CATALOG_URLS, *CATALOG_TOKENS, ALLOW_HTTP_CATALOG)}

# Delta-rs obeys these options and obstore cannot. To ignore them would use another identity.
_REFUSED: Final = {
    **dict.fromkeys(
        ("aws_iam_role_arn", "aws_s3_assume_role_arn"),
        "spark_mq cannot assume this role. Give the keys of the role, or a web identity",
    ),
    "aws_profile": "spark_mq reads no profile files. Give the keys of the profile",
    "aws_endpoint_url_s3": "obstore does not know it. Use AWS_ENDPOINT_URL",
}

_PREFIXES: Final = {
    "aws": ("aws_",), "azure": ("azure_storage_", "azure_"), "google": ("google_",),
}  # fmt: skip
_SECRET: Final = re.compile(
    r"key|secret|token|password|sas|proxy_url|credential|certificate|connection_string"
)
_EMULATED: Final = "devstoreaccount1"  # the account of each emulator
_TRUE: Final = frozenset(("1", "true", "on", "yes", "y"))
_FALSE: Final = frozenset(("0", "false", "off", "no", "n"))


def store_options(
    scheme: str,
    options: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    *,
    account: str | None = None,  # of Azure, as the root names it
) -> StoreOptions:
    """Sort storage options into groups of obstore. Raise InvalidOption, which shows no value."""
    provider, wanted, names = PROVIDERS[scheme], StoreOptions(), dict[tuple[str, str], str]()
    for name, value in options.items():
        place = _place(provider, name)
        if place is None:
            continue
        group, key = place
        setting = _value(name, group, key, str(value))
        target = getattr(wanted, group)
        if target.get(key, setting) != setting:
            raise _invalid(name, f"{names[place]} gives another value. Remove one of them")
        target[key], names[place] = setting, name
    _check_account(wanted.config, names, account)
    for key, (name, text) in _variables(provider, environment or {}).items():
        group = "client_options" if key in _CLIENT else "config"
        # obstore would read most of them itself, but the root's account has priority.
        if key not in getattr(wanted, group) and not (account and key == "account_name"):
            getattr(wanted, group)[key] = _value(name, group, key, text)
            names[group, key] = name
    _check_emulator(wanted.config, names)
    if environment is not None:
        _check_http(provider, wanted, names)
    return StoreOptions(wanted.config, wanted.client_options, _nested(wanted.retry_config))


def account_name(
    scheme: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> str | None:
    """Return the account of Azure that options name, or else the environment. Or None."""
    config = store_options(scheme, options, environment).config
    return config.get("account_name") or (_EMULATED if _is_emulated(config) else None)


def endpoint_of(scheme: str, options: Mapping[str, Any]) -> str:
    config = store_options(scheme, options).config
    return config.get("endpoint") or config.get("base_url") or ""


def is_secret(name: str) -> bool:
    return _SECRET.search(name.lower()) is not None


def _variables(provider: str, environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return name and text of the variables that give options of a provider, by key."""
    keys, variables = _CONFIG[provider] | _CLIENT, dict[str, tuple[str, str]]()
    for prefix in _PREFIXES[provider]:
        for name, text in environment.items():
            low = name.lower()
            if text and low.startswith(prefix) and (key := keys.get(low.removeprefix(prefix))):
                variables.setdefault(key, (name, text))
    return variables


def _is_emulated(config: Mapping[str, str]) -> bool:
    return config.get("use_emulator", "").lower() in _TRUE


def _check_account(
    config: Mapping[str, str], names: Mapping[tuple[str, str], str], account: str | None
) -> None:
    """Raise InvalidOption for another account than the path's, which delta-rs would use."""
    if account and config.get("account_name", account).lower() != account:
        raise _invalid(
            names["config", "account_name"],
            f"the path has the account {account!r}, and the option another one. Remove it",
        )


def _check_emulator(config: Mapping[str, str], names: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidOption for an endpoint beside an emulator, because no client obeys it."""
    given = names.get(("config", "endpoint"))
    if given and _is_emulated(config):
        raise _invalid(
            given,
            "use_emulator uses port 10000 of this machine and ignores it. Remove use_emulator, and "
            "give azure_storage_account_name, azure_storage_account_key and azure_allow_http",
        )


def _place(provider: str, name: str) -> tuple[str, str] | None:
    """Return group and key of an option, or None if obstore does not need it."""
    low = name.lower()
    if low in _REFUSED and provider == "aws":
        raise _invalid(name, _REFUSED[low])
    if low in _RETRY:
        return "retry_config", _RETRY[low]
    bare = _bare(provider, low)
    if low.endswith("connection_string"):
        raise _invalid(name, "delta-rs does not know it. Give the account and the key that it has")
    if bare in _CONFIG[provider]:
        return "config", _CONFIG[provider][bare]
    if bare in _CLIENT:
        return "client_options", bare
    if low in _IGNORED or low in _REFUSED or _is_of_another(low):
        return None
    raise _unknown(provider, name)


def _bare(provider: str, low: str) -> str:
    prefix = next((p for p in _PREFIXES[provider] if low.startswith(p)), "")
    return low[len(prefix) :]


def _is_of_another(low: str) -> bool:
    """Return whether any provider knows an option. One mapping may serve several stores."""
    bares = ((provider, _bare(provider, low)) for provider in _CONFIG)
    return any(bare in _CONFIG[provider] or bare in _CLIENT for provider, bare in bares)


def _value(name: str, group: str, key: str, value: str) -> Any:
    _check_line(name, key, value)
    if group == "retry_config":
        return _retry_value(name, key, value)
    if name.lower().endswith("s3_addressing_style"):
        return str(value.lower() == "virtual").lower()
    if key == "conditional_put" and value.lower() != "etag":
        raise _invalid(name, "commits need conditional writes by etag. Remove the option")
    if key in _FILES and value[:1] in ("~", "$"):
        raise _invalid(name, "'~' and variables are not replaced. Give the whole path")
    if key == "allow_http" and value.lower() in _TRUE | _FALSE:
        return str(value.lower() in _TRUE).lower()
    return value


def _check_line(name: str, key: str, value: str) -> None:
    """Raise InvalidOption for a value, such as a secret from a file, that no header can carry."""
    if key not in _DOCUMENTS and any(character < " " or character == "\x7f" for character in value):
        raise _invalid(name, "it has a line break or another control character. Remove it")


def _retry_value(name: str, key: str, value: str) -> Any:
    try:
        if key == "max_retries":
            return int(value)
        if key == "backoff.base":
            return float(value)
        if value[-1:].isalpha():  # delta-rs refuses a duration without a unit
            return timedelta(microseconds=validate_duration(name, value, zero=True))
    except (ValueError, OverflowError, InvalidOption):
        pass
    raise _invalid(name, 'it is not a number or a duration. Use a form like "3" or "30s"')


def _nested(retry: dict[str, Any]) -> dict[str, Any]:
    backoff = {k.partition(".")[2]: v for k, v in retry.items() if k.startswith("backoff.")}
    plain = {k: v for k, v in retry.items() if not k.startswith("backoff.")}
    return {**plain, "backoff": backoff} if backoff else plain


def _check_http(provider: str, wanted: StoreOptions, names: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidOption for a server without TLS that is not allowed: no retry could help."""
    if wanted.client_options.get("allow_http", "").lower() in _TRUE:
        return
    for key in ("endpoint", "base_url"):
        if wanted.config.get(key, "").lower().startswith("http://"):
            raise _invalid(
                names["config", key],
                "the address starts with http://, so the server has no TLS, and others can read "
                f"what is sent. Give https://, or allow it by {_PREFIXES[provider][-1]}allow_http="
                '"true"',
            )


def _unknown(provider: str, name: str) -> InvalidOption:
    prefixed = [f"{_PREFIXES[provider][-1]}{bare}" for bare in (*_CONFIG[provider], *_CLIENT)]
    known = [*prefixed, *_CONFIG[provider], *_CLIENT, *_RETRY, *_IGNORED]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)
    return _invalid(name, f"it is unknown. The nearest known option is {near[0]!r}")


def _invalid(name: str, cause: str) -> InvalidOption:
    return InvalidOption(f"Reading storage option {name!r} failed: {cause}.", option=name)


def is_in_catalog(path: str) -> bool:
    return path[:5].lower() == "uc://"
