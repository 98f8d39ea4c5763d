"""Single pixels of files from outside: read in child processes of their own, so that no upload waits for them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from service.jobs.children import Bounds, Children, serve
from service.jobs.readers import Readers
from service.mapping.remote import is_remote
from service.mapping.scenes import Limits, open_pixels, open_scene

BOUNDS = Bounds(
    seconds=20.0,
    memory_bytes=4 << 30,
    doing="the pixel could not be read",
    reason="its file has blocks that have to be unpacked whole, or is damaged; write it in small tiles, such as with "
    "gdal_translate -co TILED=YES, to look at its spectra",
)
FAR_REASON = "its place does not answer, or too slowly; try again later"
MOST_CHILDREN = 2
MOST_ASKED = 16


class Pixels:
    """Reads spectra."""

    def __init__(self) -> None:
        self._children = Children(__name__, MOST_CHILDREN, BOUNDS)
        self._readers = Readers(MOST_CHILDREN, MOST_ASKED, "pixel")
        self._far_children = Children(__name__, MOST_CHILDREN, replace(BOUNDS, reason=FAR_REASON))
        self._far_readers = Readers(MOST_CHILDREN, MOST_ASKED, "far-pixel")

    def read(self, path: Path, limits: Limits, version: str, row: int, col: int) -> Future[list[float | None]]:
        """The values of a pixel in the scene's good bands and physical units; None where a band has no data."""
        question = {"scene": str(path), "limits": asdict(limits), "version": version, "pixel": [row, col]}
        if is_remote(path):  # a place that stalls holds up nobody who looks at what is here
            return self._far_readers.ask(lambda: self._far_children.ask(question)["values"])
        return self._readers.ask(lambda: self._children.ask(question)["values"])

    def close(self) -> None:
        """End the children, whatever they are reading."""
        for readers in (self._readers, self._far_readers):
            readers.close()
        for children in (self._children, self._far_children):
            children.close()


def _read(question: dict[str, Any]) -> dict[str, Any]:
    scene = open_scene(
        Path(question["scene"]), Limits(**question["limits"]), counts_packed=False, version=question["version"]
    )
    with open_pixels(scene) as pixels:
        return {"values": [value if value == value else None for value in pixels.spectrum(*question["pixel"]).tolist()]}


if __name__ == "__main__":
    serve(_read, BOUNDS)
