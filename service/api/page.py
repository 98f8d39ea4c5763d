"""The page: what `GET /` answers to a browser, and the files that it is made of; nothing comes from other hosts."""

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

from service.api.context import base_of

WEB = Path(__file__).parent.parent / "web"
# Pictures are fetched with the API key and shown from memory (blob:); Leaflet clears tiles with a data: picture.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept",  # everybody else gets the landing document at the same address
}


def add_page(app: FastAPI) -> None:
    """Have browsers get the page, before the landing document is thought of; the page is open, its calls are not."""
    leaflet = Path(str(distribution("XStatic-Leaflet").locate_file("xstatic/pkg/leaflet/data")))
    app.router.routes[:0] = [
        _BrowsersOnly("/", _show_page, methods=["GET"]),
        Mount("/page/leaflet", _Revalidated(directory=leaflet)),
        Mount("/page", _Revalidated(directory=WEB)),
    ]


def wants_page(accept: str) -> bool:
    """Whether a caller would rather have HTML than JSON."""
    wanted = dict(map(_preference, accept.lower().split(",")))
    return wanted.get("text/html", 0.0) > wanted.get("application/json", 0.0)


def _preference(part: str) -> tuple[str, float]:
    kind, *parameters = (word.strip() for word in part.split(";"))
    given = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return kind, float(given)
    except ValueError:
        return kind, 0.0


class _BrowsersOnly(Route):
    """A route that others do not see."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and wants_page(Headers(scope=scope).get("accept", "")):
            return super().matches(scope)
        return Match.NONE, {}


class _Revalidated(StaticFiles):
    """Files whose copies are asked about each time: after an upgrade, no old module is left among new ones."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        return await super().get_response(path, scope)

    def file_response(self, *args: object, **more: object) -> Response:
        response = super().file_response(*args, **more)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _show_page(request: Request) -> HTMLResponse:
    text = await asyncio.to_thread((WEB / "index.html").read_text, "utf-8")  # whatever the machine's own encoding is
    return HTMLResponse(text.replace("{{base}}", html.escape(base_of(request))), headers=HEADERS)
