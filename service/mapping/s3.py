"""Requests for objects in S3, signed with Signature Version 4.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html describes it. GDAL's own S3 client is not
used, because it follows the redirects that a store puts into its error documents.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hyperscene.errors import SourceUnreachable
from hyperscene.service.mapping.remote_hosts import RangeRequest

NO_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class _Key:
    id: str
    secret: str
    token: str | None


def sign(href: str, wanted: str, now: datetime | None = None) -> RangeRequest:
    """The request for a range of s3://BUCKET/KEY, with the variables that GDAL and the AWS tools read."""
    parts = urlsplit(href)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    named = os.environ.get("AWS_S3_ENDPOINT", "")
    scheme = "http" if named.startswith("http://") or not _is_on("AWS_HTTPS", True) else "https"
    host = named.partition("://")[2] or named or f"s3.{region}.amazonaws.com"
    target = "/" + quote(parts.path.lstrip("/"), safe="/~")
    if _is_on("AWS_VIRTUAL_HOSTING", "." not in parts.netloc):  # TLS certificates cover one label
        host = f"{parts.netloc}.{host.rstrip('/')}"
    else:
        target = f"/{parts.netloc}{target}"
    headers = {"host": host.rstrip("/"), "range": wanted}
    if payer := os.environ.get("AWS_REQUEST_PAYER"):
        headers["x-amz-request-payer"] = payer
    if not _is_on("AWS_NO_SIGN_REQUEST", False):
        headers |= _signature(_key(), region, target, headers, now or datetime.now(UTC))
    return RangeRequest(f"{scheme}://{headers['host']}", target, headers, bool(named))


def _is_on(variable: str, default: bool) -> bool:
    return {
        "YES": True,
        "TRUE": True,
        "ON": True,
        "1": True,
        "NO": False,
        "FALSE": False,
        "OFF": False,
        "0": False,
    }.get(os.environ.get(variable, "").upper(), default)


def _signature(key: _Key, region: str, target: str, headers: dict[str, str], now: datetime) -> dict[str, str]:
    """The headers that sign a request."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-content-sha256": NO_BODY, "x-amz-date": moment}
    if key.token:
        added["x-amz-security-token"] = key.token
    signed = sorted((headers | added).items())
    names = ";".join(name for name, _ in signed)
    lines = ["GET", target, "", *(f"{name}:{text}" for name, text in signed), "", names, NO_BODY]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    secret = f"AWS4{key.secret}".encode()
    for step in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"):
        secret = hmac.digest(secret, step.encode(), "sha256")
    credential = f"Credential={key.id}/{scope}, SignedHeaders={names}, Signature={secret.hex()}"
    return added | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _key() -> _Key:
    """The operator's key: from variables, from botocore if it is installed (roles, for example), or from a file."""
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ:
        token = os.environ.get("AWS_SESSION_TOKEN")
        return _Key(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], token)
    if (credentials := _botocore_credentials()) is not None:
        frozen = credentials.get_frozen_credentials()  # renewed before they expire
        return _Key(frozen.access_key, frozen.secret_key, frozen.token)
    file = configparser.ConfigParser(interpolation=None)
    file.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials", "utf-8")
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    if file.has_option(profile, "aws_access_key_id") and file.has_option(profile, "aws_secret_access_key"):
        found = file[profile]
        return _Key(found["aws_access_key_id"], found["aws_secret_access_key"], found.get("aws_session_token"))
    raise SourceUnreachable(
        "this server has no key for S3: its operator sets AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, installs "
        "botocore to use a role, or sets AWS_NO_SIGN_REQUEST=YES for public buckets"
    )


@cache
def _botocore_credentials() -> Any:
    try:
        from botocore.session import get_session
    except ImportError:
        return None
    return get_session().get_credentials()
