"""HTTP caching of responses that never change: ETag, Cache-Control, If-None-Match."""

from __future__ import annotations

from fastapi import Request


def cache_headers(etag: str) -> dict[str, str]:
    """Headers of a response that the client may cache."""
    return {
        "ETag": etag,
        # Private caches only, by key: no cache may return one key's response to a request with another key.
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "X-API-Key, Authorization",
    }


def is_not_modified(request: Request, etag: str) -> bool:
    """Whether the client's cached copy is current."""
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    return etag in tags or "*" in tags
