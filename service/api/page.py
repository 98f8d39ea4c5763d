"""The web page: `GET /` for browsers, and its files. It loads nothing from other hosts but the operator's basemap."""

from __future__ import annotations

import asyncio
import html
from importlib.metadata import distribution
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from hyperscene.service.api.context import base_of
from hyperscene.service.settings import Settings

WEB = Path(__file__).parent.parent / "web"
# Images are fetched with the API key and shown as blob: URLs; Leaflet clears tiles with a data: image.
IMAGES = "'self' blob: data:"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src {images}; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Vary": "Accept",  # other clients get the landing page as JSON at the same URL
}


def security_headers(settings: Settings) -> dict[str, str]:
    """The headers of every response."""
    return {
        "Content-Security-Policy": POLICY.format(images=f"{IMAGES} {settings.basemap_origin}".strip()),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def add_page(app: FastAPI) -> None:
    """Add the page's routes before the landing page's. The page needs no API key; its requests do."""
    leaflet = Path(str(distribution("XStatic-Leaflet").locate_file("xstatic/pkg/leaflet/data")))
    app.router.routes[:0] = [
        _BrowsersOnly("/", _show_page, methods=["GET"]),
        Mount("/page/leaflet", _Revalidated(directory=leaflet)),
        Mount("/page", _Revalidated(directory=WEB)),
    ]


def prefers_html(accept: str) -> bool:
    """Whether the Accept header prefers HTML to JSON."""
    qualities = dict(map(_media_range, accept.lower().split(",")))
    return qualities.get("text/html", 0.0) > qualities.get("application/json", 0.0)


def _media_range(part: str) -> tuple[str, float]:
    media_type, *parameters = (word.strip() for word in part.split(";"))
    quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 0.0


class _BrowsersOnly(Route):
    """A route that matches only browsers."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and prefers_html(Headers(scope=scope).get("accept", "")):
            return super().matches(scope)
        return Match.NONE, {}


class _Revalidated(StaticFiles):
    """Static files that browsers revalidate on each use, so that an upgrade never mixes old and new modules."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        return await super().get_response(path, scope)

    def file_response(self, *args: object, **more: object) -> Response:
        response = super().file_response(*args, **more)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _show_page(request: Request) -> HTMLResponse:
    text = await asyncio.to_thread((WEB / "index.html").read_text, "utf-8")
    settings = request.app.state.service.settings
    values = {"base": base_of(request), "basemap": settings.basemap or "", "attribution": settings.basemap_attribution}
    for name, value in values.items():
        text = text.replace(f"{{{{{name}}}}}", html.escape(value))
    return HTMLResponse(text, headers=HEADERS)
