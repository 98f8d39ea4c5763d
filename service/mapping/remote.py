"""Scenes in other places: which addresses may be read, how GDAL reads them, and what tells that one has changed."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from service.errors import PlaceUnreachable, RequestUnusable, SceneUnreadable

# GDAL's names for files that are not here; the address is packed, since a Path would fold its double slash.
OVER_HTTP, OVER_S3 = "/vsicurl?list_dir=no&url=", "/vsis3/"
SCHEMES = ("https", "http", "s3")
PROBE_S = 20.0
RETRIES_S, BUSY = (1.0, 2.0, 4.0), (429, 500, 502, 503, 504)
HIDING = re.compile(r"\\|%2e|%2f|%5c", re.IGNORECASE)  # in a path that was decoded once
# Parts of a file that show whether it is still the same: where packed blocks lie depends on all blocks before them.
PROBED_BLOCKS = 1000
# GDAL tries again where a server is busy or gone for a moment: a minute in all, since every delay doubles. What was
# read is forgotten when a file is closed: it may be another one the next time.
REMOTE_ENV = {
    "GDAL_HTTP_MAX_RETRY": 6,
    "GDAL_HTTP_RETRY_DELAY": 1,
    "GDAL_HTTP_CONNECTTIMEOUT": 10,
    "GDAL_HTTP_LOW_SPEED_LIMIT": 1000,
    "GDAL_HTTP_LOW_SPEED_TIME": 20,
    "GDAL_HTTP_TIMEOUT": 600,  # a request, which is a row of blocks at most
    "CPL_VSIL_CURL_NON_CACHED": "/vsicurl/:/vsicurl?:/vsis3/",
}


def check_beginning(beginning: str) -> str:
    """A beginning of addresses that may be read, as an operator gives it, or what is wrong with it."""
    parts = urlsplit(beginning)
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in SCHEMES or not parts.netloc or not parts.path.endswith("/") or not is_plain:
        raise ValueError(
            "is a list of https://HOST/FOLDER/, http://HOST/ or s3://BUCKET/FOLDER/, each with a slash at its end, "
            f"not {beginning}"
        )
    return beginning


def allowed_path(href: str, beginnings: tuple[str, ...]) -> Path:
    """The name under which GDAL reads an address, if it is one of those that may be read."""
    if not beginnings:
        raise RequestUnusable(
            "the scene's href leads to another place, and this server reads from no other place: upload the scene with "
            "POST /scenes and give its address"
        )
    if not _is_plain(href):
        raise RequestUnusable("the scene's href is no plain https://, http:// or s3:// address of a file: mend it")
    if not any(_begins(href, beginning) for beginning in beginnings):
        raise RequestUnusable(
            f"the scene's href leads to a place that this server does not read from; it reads {', '.join(beginnings)}: "
            "put the scene there, or upload it with POST /scenes"
        )
    parts = urlsplit(href)
    if parts.scheme.lower() != "s3":
        return Path(OVER_HTTP + quote(href, safe=""))
    if parts.query or "" in parts.path.split("/")[1:]:
        raise RequestUnusable("an s3:// address is a bucket and a key, without a question mark or empty folders")
    return Path(f"{OVER_S3}{parts.netloc}/{parts.path.lstrip('/')}")


def _is_plain(href: str) -> bool:
    """Whether an address means the same to everybody who reads it: no way up, nothing hidden by an escape."""
    try:
        parts = urlsplit(href)
    except ValueError:  # half of an IPv6 address, say
        return False
    path = unquote(parts.path)
    has_spaces = href != href.strip() or (parts.scheme.lower() != "s3" and " " in href)
    if parts.scheme.lower() not in SCHEMES or "@" in parts.netloc or parts.fragment or has_spaces:
        return False
    if not (href.isprintable() and path.isprintable()) or HIDING.search(path):
        return False
    steps = [step.partition(";")[0] for step in path.split("/")]  # some servers drop what follows a semicolon
    return bool(steps[-1]) and not {".", ".."} & set(steps)


def _begins(href: str, beginning: str) -> bool:
    parts, start = urlsplit(href), urlsplit(beginning)
    is_same_host = parts.netloc.lower() == start.netloc.lower()
    if start.scheme == "s3":  # some stores tell buckets apart by capitals
        is_same_host = parts.netloc == start.netloc
    return parts.scheme.lower() == start.scheme and is_same_host and parts.path.startswith(start.path)


def is_remote(path: Path) -> bool:
    """Whether a scene is read over a network."""
    return str(path).startswith((OVER_HTTP, OVER_S3))


def address_of(path: Path) -> str:
    """A remote scene's address for people: without what follows a question mark, which may be a secret."""
    text = str(path)
    if text.startswith(OVER_S3):
        return f"s3://{text.removeprefix(OVER_S3)}"
    return unquote(text.removeprefix(OVER_HTTP)).partition("?")[0]


def probe(path: Path) -> str:
    """What a server says that tells its file from any other; refuses one that is not there, or not in parts.

    To be asked before GDAL is, which would follow a redirect to anywhere. S3 is GDAL's alone.
    """
    if not str(path).startswith(OVER_HTTP):
        return ""
    status, headers = _first_byte(unquote(str(path).removeprefix(OVER_HTTP)), address_of(path))
    if 300 <= status < 400:
        raise SceneUnreadable(f"{address_of(path)} leads to another address: give that one, if it is allowed")
    if status in BUSY:
        raise PlaceUnreachable(f"{address_of(path)} answers {status}: try again later")
    if status != httpx.codes.PARTIAL_CONTENT:
        reason = "sends whole files only (no Range requests)" if status == httpx.codes.OK else f"answers {status}"
        raise SceneUnreadable(f"{address_of(path)} {reason}: check it, or upload the scene with POST /scenes")
    return f"{headers.get('etag', '')} {headers.get('last-modified', '')} {headers.get('content-range', '')}"


def _first_byte(href: str, address: str) -> tuple[int, httpx.Headers]:
    """The status and headers of an answer to a request for one byte; a server that is busy is asked again."""
    deadline = time.monotonic() + PROBE_S
    for delay_s in (*RETRIES_S, None):
        is_last = delay_s is None or time.monotonic() + delay_s > deadline
        try:
            with httpx.stream("GET", href, headers={"Range": "bytes=0-0"}, timeout=PROBE_S / 2) as answer:
                if is_last or answer.status_code not in BUSY:
                    return answer.status_code, answer.headers
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SceneUnreadable(f"{address} is no address: mend it") from error
        except httpx.HTTPError as error:
            if is_last:
                reason = str(error) or type(error).__name__
                raise PlaceUnreachable(f"{address} does not answer ({reason}): check it, or try again later") from error
        time.sleep(delay_s or 0)
    raise AssertionError("the last try answers or raises")


def fingerprint(said: str, dataset: Any) -> str:
    """A digest of what a server said and where a file's blocks lie: another one for another file at the address."""
    digest = hashlib.sha256(said.encode())
    block_rows, block_cols = dataset.block_shapes[0]
    across, down = -(-dataset.width // block_cols), -(-dataset.height // block_rows)
    step = max(1, across * down // PROBED_BLOCKS)
    for place in (*range(0, across * down, step), across * down - 1):
        for what in ("OFFSET", "SIZE"):
            name = f"BLOCK_{what}_{place % across}_{place // across}"
            digest.update(f"{name} {dataset.get_tag_item(name, 'TIFF', bidx=dataset.count)}\n".encode())
    return digest.hexdigest()
