"""Answers that never change: their tag, and how long and for whom they may be kept."""

from __future__ import annotations

from fastapi import Request


def kept_headers(etag: str) -> dict[str, str]:
    """The headers of an answer that its caller may keep."""
    return {
        "ETag": etag,
        # Cached copies are the caller's own: a shared cache must not hand them to another key, and neither must a
        # browser that knows two.
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "X-API-Key, Authorization",
    }


def is_kept(request: Request, etag: str) -> bool:
    """Whether the caller has the answer already."""
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    return etag in tags or "*" in tags
