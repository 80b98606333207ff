"""Convert errors of stores and of pyarrow to errors that name the failed table and the remedy."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from spark_mq.errors import SparkMQError, StorageError
from spark_mq.util.show import printable

# Not pyarrow's own errors: a bug in a rule raises them too, and no retry mends that.
STORE_ERRORS: Final = (OSError,)

# A store has certainly not applied such a put: no right, or no bucket.
REFUSALS: Final = (PermissionError, FileNotFoundError)

# What is known of a change that failed, and the end of the advice.
_OUTCOMES: Final = {
    False: ("nothing was changed", ""),
    None: (
        "it is unknown if the change landed",
        ". It may also land later, so repeat a publish with the same producer number or dedup ids",
    ),
}

_FULL_CODES: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED_CODES: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL: Final = re.compile(
    r"no space left|os error 28|errno 28|quota|os error 122|file too large|os error 27|disk full",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"read-only|os error 30|permission denied|os error 13|not permitted|access "
    r"?denied|forbidden|unauthenticated|\b40[13]\b",
    re.IGNORECASE,
)
_NO_FOLDER_CODES: Final = {errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE
)
_WRONG_REGION: Final = re.compile(
    r"incorrectly configured region|PermanentRedirect|AuthorizationHeaderMalformed", re.IGNORECASE
)
_IN_THE_WAY: Final = re.compile(r"status code: 409\b")
_UNREACHABLE: Final = re.compile(
    r"sending request|timed? ?out|connect|reset|dns|http|retries|\b50\d\b|generic (s3|gcs|azure)",
    re.IGNORECASE,
)
_PATHS: Final = re.compile(r"'[^']*/[^']*'|\S*/\S*")  # whose words say nothing of the cause

# Addresses that a store's client asks for credentials if it has none.
_NO_CREDENTIALS: Final = re.compile(
    r"https?://(169\.254\.|metadata\.google\.internal|[^/\s]+/("
    r"latest/api/token|latest/meta-data/iam/security-credentials|metadata/identity/oauth2/token"
    r"|computeMetadata/v1/instance/service-accounts/default/token)(?![\w/]))",
    re.IGNORECASE,
)
# The options that give credentials, by the start of a store's scheme.
_CREDENTIALS: Final = {
    "s3": "aws_access_key_id and aws_secret_access_key, with aws_session_token for a role",
    "g": "google_service_account, or google_application_credentials",
    "a": "azure_storage_account_key, azure_storage_sas_key, or azure_client_id, "
    "azure_client_secret and azure_tenant_id",
}


class DamagedFile(pa.ArrowInvalid, OSError):  # type: ignore[misc]
    """Raised for a file of a store whose bytes cannot be decoded."""


def one_line(error: BaseException) -> str:
    """Return an error's text in one line of at most 400 characters, without stacks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace("↳", ":")
    text = re.split(r"\s+0: |Backtrace|stack backtrace|Debug source", text)[0]
    text = re.sub(r"\s+", " ", text).replace(" :", ":").strip()
    return printable(text[:400]) or type(error).__name__


def to_storage_error(
    path: str, error: BaseException, operation: str, *, landed: bool | None = False
) -> SparkMQError:
    """Return the error to raise for a failed operation, such as "publishing to" a table."""
    if isinstance(error, SparkMQError):
        return error
    text, code = one_line(error), getattr(error, "errno", None)
    said = _PATHS.sub(" ", text)
    outcome, repeat = _OUTCOMES[landed]
    lasting = True
    if _NO_CREDENTIALS.search(text):
        advice = _credentials_advice(path)
    elif code in _FULL_CODES or _FULL.search(said):
        advice, lasting = "The disk or its quota is full. Free some space and retry", False
    elif code in _REFUSED_CODES or isinstance(error, PermissionError) or _REFUSED.search(said):
        advice = "The store refuses access. Make it readable and writable for this user and retry"
    elif code in _NO_FOLDER_CODES:
        advice = (
            "Part of the path is not a folder. Correct the path, or remove what is in its place"
        )
    elif _NO_BUCKET.search(said):
        advice = "There is no such bucket. Correct the path, or create the bucket"
    elif _WRONG_REGION.search(said):
        advice = "The bucket is in another region. Give its region in the storage options"
    elif _IN_THE_WAY.search(said):
        advice = "Other requests for the same name or folder were in the way. Retry"
        lasting = False
    elif isinstance(error, TimeoutError | ConnectionError) or _UNREACHABLE.search(said):
        advice, lasting = "The store is out of reach. Retry", False
    else:
        advice, lasting = "Retry. If it fails again, check the store", False
    return StorageError(
        f"{operation} {path} failed, {outcome}: {text}. {advice}{repeat}",
        path=path,
        landed=landed,
        lasting=lasting,
    )


def _credentials_advice(path: str) -> str:
    options = next(
        (text for start, text in _CREDENTIALS.items() if path.lower().startswith(start)), "them"
    )
    return (
        "No credentials were found: none are given, and the lookup of an instance role failed. "
        f"Give the storage options {options}. Environment variables of these names in capitals "
        "do, too"
    )


@contextlib.contextmanager
def wrap_store_errors(path: str, operation: str, *, landed: bool | None = False) -> Iterator[None]:
    """Convert errors of the store in the block, as :func:`to_storage_error`."""
    try:
        yield
    except SparkMQError:
        raise
    except STORE_ERRORS as error:
        raise to_storage_error(path, error, operation, landed=landed) from error
