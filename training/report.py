"""The report of a training: its settings, how accurate it is, likely label mistakes, and both maps as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.model.bundle import Bundle
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.png import png_of_colors
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.evaluate import map_array
from hyperscene.training.fit.cross_validation import advice
from hyperscene.training.train import Trained

# Both maps are compared in a window of this size round the labels: mapping it takes seconds, whatever the scene's size.
SHOWN_PX = 512


def training_report(trained: Trained, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The report as a document; likely mistakes have their coordinates."""
    record, scene = trained.bundle.manifest.training, trained.scene
    validation = record.get("cross_validation")
    if validation is not None:
        validation = validation | {"likely_mistakes": [_placed(each, scene) for each in validation["likely_mistakes"]]}
    return {
        "classes": _classes(scene),
        "settings": {name: record[name] for name in ("recipe", "seed", "precision", "chosen", "split", "code_version")},
        "sha256": trained.bundle.sha256,
        "cross_validation": validation,
        "scores": record.get("scores"),
        "text": trained.report(),
        "advice": _advice(trained),
        "warnings": [*scene.warnings],
        "seconds": {name: round(spent_s, 3) for name, spent_s in seconds.items()},
    }


def _advice(trained: Trained) -> list[str]:
    """What to do next, in sentences."""
    scene, validation = trained.scene, trained.validation
    if validation is None:
        return []
    counts = [int((scene.labels == number).sum()) for number in range(1, len(scene.legend) + 1)]
    return advice(validation, counts, [entry.name for entry in scene.legend], scene.transform)


def _classes(scene: LabelledScene) -> list[dict[str, Any]]:
    """Name, colour, labelled pixels and their clusters for each class."""
    return [
        {
            "name": entry.name,
            "color": entry.color,
            "pixels": int((scene.labels == number).sum()),
            "clusters": len(np.unique(scene.clusters[scene.labels == number])),
        }
        for number, entry in enumerate(scene.legend, start=1)
    ]


def _placed(mistake: dict[str, Any], scene: LabelledScene) -> dict[str, Any]:
    """A likely mistake with the coordinates of its pixel's centre, where the scene has some."""
    if scene.transform is None or scene.crs is None:
        return mistake
    x, y = scene.transform @ (mistake["col"] + 0.5, mistake["row"] + 0.5)
    return mistake | {"x": x, "y": y, "crs": scene.crs.to_string()}


def draw_maps(trained: Trained, network_file: Path, propagation_file: Path) -> dict[str, Any]:
    """Write the network's map and that of label propagation, round the labels, and compare them."""
    scene = trained.scene
    window = _window(scene)
    top, bottom, left, right = window
    cube, valid = scene.cube[top:bottom, left:right], scene.valid[top:bottom, left:right]
    network = _map_of(trained.bundle, np.ascontiguousarray(cube), np.ascontiguousarray(valid))
    _write_png(network_file, network, scene)
    if scene.mosaic is not None:  # windows of a large scene, side by side
        document: dict[str, Any] = {"windows": len(scene.mosaic.windows)}
    else:
        document = {"rows": [top, bottom], "cols": [left, right], "crs": _crs(scene)}
    if trained.propagated is None:
        return document
    propagated = trained.propagated[top:bottom, left:right]
    _write_png(propagation_file, propagated, scene)
    agreement = (network == propagated)[valid].mean() if valid.any() else None
    return document | {"agreement": None if agreement is None else round(float(agreement), 4)}


def _map_of(bundle: Bundle, cube: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.uint16]:
    found = map_array(bundle, PixelRows(0, cube, valid), MapOptions())
    return np.where(valid, found, 0).astype(np.uint16)


def _window(scene: LabelledScene) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of the window round the labels' median."""
    middle = np.median(np.argwhere(scene.labels > 0), axis=0).astype(int)
    edges = []
    for size, center in zip(scene.labels.shape, middle, strict=True):
        low = int(np.clip(center - SHOWN_PX // 2, 0, max(0, size - SHOWN_PX)))
        edges += [low, min(size, low + SHOWN_PX)]
    return edges[0], edges[1], edges[2], edges[3]


def _write_png(path: Path, classes: NDArray[np.integer], scene: LabelledScene) -> None:
    """A class map in the classes' colours, transparent where there is no data."""
    table = np.zeros((len(scene.legend) + 1, 4), np.uint8)
    for number, entry in enumerate(scene.legend, start=1):
        table[number] = [*bytes.fromhex(entry.color[1:]), 255]
    path.write_bytes(png_of_colors(table[classes]))


def _crs(scene: LabelledScene) -> str | None:
    return None if scene.crs is None else scene.crs.to_string()
