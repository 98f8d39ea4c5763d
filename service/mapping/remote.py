"""Scenes at URLs: which URLs may be read, how they are named, and how a changed file is detected."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from hyperscene.errors import RequestUnusable

# Begins the path of a remote file, which GDAL does not know; the URL is quoted: a Path would fold its double slash.
REMOTE = "/remote?"
SCHEMES = ("https", "http", "s3")
ESCAPED = re.compile(r"\\|%2e|%2f|%5c", re.IGNORECASE)  # dots and slashes, in a path that was decoded once
# A file is recognised by the offsets of some blocks: in a compressed file they depend on all blocks before them.
PROBED_BLOCKS = 1000


@dataclass(frozen=True)
class RemoteName:
    """The URL of a remote file, and the private networks in which its host may be."""

    href: str
    networks: tuple[str, ...]

    @property
    def is_s3(self) -> bool:
        return self.href.lower().startswith("s3:")

    @property
    def address(self) -> str:
        """The URL for messages: without its query, which may hold a secret."""
        return self.href.partition("?")[0]


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


def allowed_path(href: str, url_prefixes: tuple[str, ...], networks: tuple[str, ...] = ()) -> Path:
    """The path that names a URL, if one of the prefixes allows it; its host may be in private `networks`, too."""
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
    is_s3 = parts.scheme.lower() == "s3"
    if is_s3 and (parts.query or "" in parts.path.split("/")[1:]):
        raise RequestUnusable("the scene's href must be s3://BUCKET/KEY, without a question mark or empty folders")
    listed = () if is_s3 else _networks_of(parts.hostname or "")
    return Path(REMOTE + urlencode({"networks": ",".join([*networks, *listed]), "url": href}))


def _networks_of(host: str) -> tuple[str, ...]:
    """The private addresses that an allowed host names itself."""
    if host == "localhost":
        return ("127.0.0.0/8", "::1")
    try:
        return (str(ip_address(host)),)
    except ValueError:
        return ()


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
    return str(path).startswith(REMOTE)


def remote_name(path: Path) -> RemoteName:
    """The URL that a remote scene's path names."""
    fields = parse_qs(str(path).removeprefix(REMOTE), keep_blank_values=True)
    return RemoteName(fields["url"][0], tuple(filter(None, fields["networks"][0].split(","))))


def address_of(path: Path) -> str:
    """A remote scene's URL for messages: without its query, which may hold a secret."""
    return remote_name(path).address


def name_of(path: Path) -> str:
    """A scene's file name, local or remote."""
    return address_of(path).rsplit("/", 1)[-1] if is_remote(path) else path.name


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
