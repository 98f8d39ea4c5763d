"""Scenes at URLs: which URLs may be read, how GDAL reads them, and how a changed file is detected."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from hyperscene.errors import RequestUnusable, SceneUnreadable, SourceUnreachable

# GDAL's prefixes for remote files; the URL is quoted, because a Path would fold its double slash.
OVER_HTTP, OVER_S3 = "/vsicurl?list_dir=no&url=", "/vsis3/"
SCHEMES = ("https", "http", "s3")
PROBE_S = 20.0
RETRIES_S, BUSY = (1.0, 2.0, 4.0), (429, 500, 502, 503, 504)
ESCAPED = re.compile(r"\\|%2e|%2f|%5c", re.IGNORECASE)  # dots and slashes, in a path that was decoded once
# A file is recognised by the offsets of some blocks: in a compressed file they depend on all blocks before them.
PROBED_BLOCKS = 1000
# GDAL retries when a server is busy or down for a moment: a minute in all, because every delay doubles. Its cache is
# dropped when a file is closed: the file may be another one the next time.
REMOTE_ENV = {
    "GDAL_HTTP_MAX_RETRY": 6,
    "GDAL_HTTP_RETRY_DELAY": 1,
    "GDAL_HTTP_CONNECTTIMEOUT": 10,
    "GDAL_HTTP_LOW_SPEED_LIMIT": 1000,
    "GDAL_HTTP_LOW_SPEED_TIME": 20,
    "GDAL_HTTP_TIMEOUT": 600,  # of a request, which is a row of blocks at most
    "CPL_VSIL_CURL_NON_CACHED": "/vsicurl/:/vsicurl?:/vsis3/",
}


def check_url_prefix(prefix: str) -> str:
    """A valid URL prefix from the settings; raises ValueError."""
    parts = urlsplit(prefix)
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in SCHEMES or not parts.netloc or not parts.path.endswith("/") or not is_plain:
        raise ValueError(
            "is a list of https://HOST/FOLDER/, http://HOST/ or s3://BUCKET/FOLDER/, each with a slash at its end, "
            f"not {prefix}"
        )
    return prefix


def allowed_path(href: str, url_prefixes: tuple[str, ...]) -> Path:
    """The name under which GDAL reads a URL, if one of the prefixes allows it."""
    if not url_prefixes:
        raise RequestUnusable(
            "the scene's href is a URL, and this server does not read scenes from URLs: upload the scene with "
            "POST /scenes and give its address"
        )
    if not _is_plain(href):
        raise RequestUnusable("the scene's href must be a plain https://, http:// or s3:// URL of a file: correct it")
    if not any(_matches(href, prefix) for prefix in url_prefixes):
        raise RequestUnusable(
            f"the scene's href is a URL that this server does not read from; it reads {', '.join(url_prefixes)}: "
            "put the scene there, or upload it with POST /scenes"
        )
    parts = urlsplit(href)
    if parts.scheme.lower() != "s3":
        return Path(OVER_HTTP + quote(href, safe=""))
    if parts.query or "" in parts.path.split("/")[1:]:
        raise RequestUnusable("the scene's href must be s3://BUCKET/KEY, without a question mark or empty folders")
    return Path(f"{OVER_S3}{parts.netloc}/{parts.path.lstrip('/')}")


def _is_plain(href: str) -> bool:
    """Whether every client reads a URL alike: no "..", no escaped dots or slashes, no user or fragment."""
    try:
        parts = urlsplit(href)
    except ValueError:  # such as an unclosed IPv6 address
        return False
    path = unquote(parts.path)
    has_spaces = href != href.strip() or (parts.scheme.lower() != "s3" and " " in href)
    if parts.scheme.lower() not in SCHEMES or "@" in parts.netloc or parts.fragment or has_spaces:
        return False
    if not (href.isprintable() and path.isprintable()) or ESCAPED.search(path):
        return False
    steps = [step.partition(";")[0] for step in path.split("/")]  # some servers drop what follows a semicolon
    return bool(steps[-1]) and not {".", ".."} & set(steps)


def _matches(href: str, prefix: str) -> bool:
    parts, start = urlsplit(href), urlsplit(prefix)
    is_same_host = parts.netloc.lower() == start.netloc.lower()
    if start.scheme == "s3":  # some stores have case-sensitive bucket names
        is_same_host = parts.netloc == start.netloc
    return parts.scheme.lower() == start.scheme and is_same_host and parts.path.startswith(start.path)


def is_remote(path: Path) -> bool:
    """Whether a scene is read over a network."""
    return str(path).startswith((OVER_HTTP, OVER_S3))


def address_of(path: Path) -> str:
    """A remote scene's URL for messages: without its query, which may hold a secret."""
    text = str(path)
    if text.startswith(OVER_S3):
        return f"s3://{text.removeprefix(OVER_S3)}"
    return unquote(text.removeprefix(OVER_HTTP)).partition("?")[0]


def name_of(path: Path) -> str:
    """A scene's file name, local or remote."""
    return address_of(path).rsplit("/", 1)[-1] if is_remote(path) else path.name


def probe(path: Path) -> str:
    """The HTTP headers that identify a remote file; raises if it is missing or cannot be read in parts.

    Runs before GDAL, which would follow any redirect. S3 is left to GDAL.
    """
    if not str(path).startswith(OVER_HTTP):
        return ""
    status, headers = _first_byte(unquote(str(path).removeprefix(OVER_HTTP)), address_of(path))
    if 300 <= status < 400:
        raise SceneUnreadable(f"{address_of(path)} redirects to another URL: give that one, if it is allowed")
    if status in BUSY:
        raise SourceUnreachable(f"{address_of(path)} returned status {status}: try again later")
    if status != httpx.codes.PARTIAL_CONTENT:
        reason = (
            "sends whole files only (no Range requests)" if status == httpx.codes.OK else f"returned status {status}"
        )
        raise SceneUnreadable(f"{address_of(path)} {reason}: check it, or upload the scene with POST /scenes")
    return f"{headers.get('etag', '')} {headers.get('last-modified', '')} {headers.get('content-range', '')}"


def _first_byte(href: str, address: str) -> tuple[int, httpx.Headers]:
    """Status and headers of a request for one byte; retried while the server is busy."""
    deadline = time.monotonic() + PROBE_S
    for delay_s in (*RETRIES_S, None):
        is_last = delay_s is None or time.monotonic() + delay_s > deadline
        try:
            with httpx.stream("GET", href, headers={"Range": "bytes=0-0"}, timeout=PROBE_S / 2) as response:
                if is_last or response.status_code not in BUSY:
                    return response.status_code, response.headers
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SceneUnreadable(f"{address} is not a valid URL: correct it") from error
        except httpx.HTTPError as error:
            if is_last:
                reason = str(error) or type(error).__name__
                raise SourceUnreachable(
                    f"{address} does not respond ({reason}): check it, or try again later"
                ) from error
        time.sleep(delay_s or 0)
    raise AssertionError("the last attempt returns or raises")


def fingerprint(headers: str, dataset: Any) -> str:
    """A digest of the identifying headers and some blocks' offsets and sizes; it changes when the file is replaced."""
    digest = hashlib.sha256(headers.encode())
    block_rows, block_cols = dataset.block_shapes[0]
    across, down = -(-dataset.width // block_cols), -(-dataset.height // block_rows)
    step = max(1, across * down // PROBED_BLOCKS)
    for block in (*range(0, across * down, step), across * down - 1):
        for what in ("OFFSET", "SIZE"):
            name = f"BLOCK_{what}_{block % across}_{block // across}"
            digest.update(f"{name} {dataset.get_tag_item(name, 'TIFF', bidx=dataset.count)}\n".encode())
    return digest.hexdigest()
