"""Opens sent label files for the first time, in sandbox processes; nothing of training is imported by the server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hyperscene.errors import LabelsUnusable, SceneUnreadable, TrainingUnavailable
from hyperscene.service.jobs.received_files import ReceivedFile, clean_name
from hyperscene.service.jobs.sandbox import Sandbox, SandboxLimits, serve
from hyperscene.service.mapping.limits import Limits

# Labels are drawn in arrays of the scene's size, with up to 8 bytes for each pixel.
LIMITS = SandboxLimits(
    seconds=60.0,
    memory_bytes=4 << 30,
    doing="the labels could not be drawn on the scene",
    reason="they are damaged or too detailed; simplify them",
)
PROCESSES = 2


class LabelInspector:
    """Describes label files without opening them in this process."""

    def __init__(self) -> None:
        self._sandbox = Sandbox(__name__, PROCESSES, LIMITS)

    def describe(self, file: ReceivedFile, scene: Path, class_field: str | None, limits: Limits) -> dict[str, Any]:
        """The document of a label file, which gets a name that tells its format; errors name it as it was sent."""
        request = {"labels": str(file.path), "scene": str(scene), "class_field": class_field, "limits": asdict(limits)}
        sent = clean_name(file.name)
        try:
            return self._sandbox.run(request)
        except (LabelsUnusable, SceneUnreadable) as error:
            text = str(error).replace("--class-field", "class_field").replace(file.path.name, sent)
            for name in ("labels.gpkg", "labels.fgb", "labels.geojson", "labels.shp", "labels.csv", "labels.tif"):
                text = text.replace(name, sent)
            raise LabelsUnusable(text) from error

    def close(self) -> None:
        """Kill the processes."""
        self._sandbox.close()


def _describe(request: dict[str, Any]) -> dict[str, Any]:
    try:
        from hyperscene.training.data.sent_labels import describe_labels

        limits = Limits(**request["limits"])
        return describe_labels(Path(request["labels"]), Path(request["scene"]), request["class_field"], limits)
    except ModuleNotFoundError as error:
        raise TrainingUnavailable(
            f"reading labels needs the package {error.name}, which this server does not have: ask the operator for "
            "pip install 'hyperscene[labels]'"
        ) from error


if __name__ == "__main__":
    serve(_describe)
