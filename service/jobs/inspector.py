"""The first look at a file from outside, in child processes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.bundle import Manifest, load_bundle
from service.jobs.children import Bounds, Children, serve
from service.mapping.describe import describe_header
from service.mapping.grids import lay_grid
from service.mapping.scenes import Limits, open_scene

# A scene's header takes some hundred megabytes at most.
BOUNDS = Bounds(seconds=60.0, memory_bytes=4 << 30)
MOST_CHILDREN = 4
# Scenes in other places have processes of their own: one that stalls is not waited for by those who upload.
PLACE_BOUNDS = Bounds(
    seconds=45.0,
    memory_bytes=4 << 30,
    doing="the scene could not be looked at",
    reason="its place does not answer, or too slowly; try again later, or upload it with POST /scenes",
)
MOST_REFERRING = 4


class Inspector:
    """Looks at files without opening them in this process."""

    def __init__(self) -> None:
        self._children = Children(__name__, MOST_CHILDREN, BOUNDS)
        self._far_children = Children(__name__, MOST_REFERRING, PLACE_BOUNDS)

    def look_at_scene(self, path: Path, limits: Limits) -> dict[str, Any]:
        """What is understood of a scene, or its refusal."""
        return self._children.ask({"scene": str(path), "limits": asdict(limits)})

    def look_at_place(self, path: Path, limits: Limits) -> dict[str, Any]:
        """What is understood of a scene that is read in place, or its refusal."""
        return self._far_children.ask({"scene": str(path), "limits": asdict(limits)})

    def look_at_bundle(self, path: Path) -> tuple[Manifest, str]:
        """A sound bundle's manifest and sha256, or its refusal."""
        answer = self._children.ask({"bundle": str(path)})
        return Manifest.model_validate(answer["manifest"]), str(answer["sha256"])

    def close(self) -> None:
        """End the children, whatever they are looking at."""
        self._children.close()
        self._far_children.close()


def _look(question: dict[str, Any]) -> dict[str, Any]:
    if "bundle" in question:
        bundle = load_bundle(Path(question["bundle"]))
        return {"manifest": bundle.manifest.model_dump(mode="json"), "sha256": bundle.sha256}
    scene = open_scene(Path(question["scene"]), Limits(**question["limits"]), counts_packed=False)
    with suppress(Exception):  # a place that harms who looks for it is met here first, and not in the server
        lay_grid(scene.rows, scene.cols, scene.crs, scene.transform, scene.gcps)
    return describe_header(scene) | ({"version": scene.version} if scene.version else {})


if __name__ == "__main__":
    serve(_look, BOUNDS)
