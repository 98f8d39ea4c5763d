"""Large scenes: only windows of them are read, round the labels and at random places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from hyperscene.service.mapping.scenes import Scene, SceneReader, open_pixels
from hyperscene.training.data.label_files import LabelList, Labels
from hyperscene.training.data.mosaic import GAP_PX, Mosaic, Windows, arrange, random_windows, windows_round

# As float32. Larger scenes are learned from windows; training takes about five times the memory of what it holds.
LARGE_SCENE_BYTES = 512 << 20
MOSAIC_BYTES = 320 << 20
LABEL_SHARE = 0.55  # of the mosaic, for windows round labels
MOST_RANDOM_WINDOWS = 48
TRIES = 50  # so many random places are tried per window, of which many may have no data
NEIGHBOURS_PX = 1.5  # a pixel's eight neighbours are closer


@dataclass(frozen=True)
class WindowsRead:
    """A mosaic's pixels and labels."""

    mosaic: Mosaic
    values: NDArray[np.float32]  # (rows, cols, bands)
    valid: NDArray[np.bool_]  # (rows, cols)
    labels: Labels
    left_out: int  # labels whose windows did not fit


def is_large(scene: Scene) -> bool:
    """Whether a scene is too large to be held in memory for training."""
    return scene.rows * scene.cols * len(scene.bands) * 4 > LARGE_SCENE_BYTES


def read_windows(scene: Scene, labels: LabelList) -> WindowsRead:
    """Read windows round the labels, and others at random places; nothing else of the scene is read."""
    most_pixels = MOSAIC_BYTES // (4 * len(scene.bands))
    labelled, held = windows_round(labels.places, labels.values, int(LABEL_SHARE * most_pixels))
    others = random_windows(scene.rows, scene.cols, labelled)
    free_pixels = most_pixels - len(labelled.corners) * (labelled.side_px + GAP_PX) ** 2
    most = min(MOST_RANDOM_WINDOWS, free_pixels // (others.side_px + GAP_PX) ** 2)
    with open_pixels(scene) as reader:
        others = replace(others, corners=_with_data(scene, reader, others, most))
        mosaic = arrange(scene.rows, scene.cols, labelled, others)
        values = np.zeros((*mosaic.shape, len(scene.bands)), np.float32)
        valid = np.zeros(mosaic.shape, bool)
        for row, col, top, left, rows, cols in mosaic.windows.tolist():
            inside = np.s_[row : row + rows, col : col + cols]
            values[inside], valid[inside] = reader.read(Window(left, top, cols, rows))
    shapes = clusters_of(labels) if labels.shapes is None else labels.shapes
    kept = replace(labels, places=mosaic.pixels(labels.places[held]), values=labels.values[held], shapes=shapes[held])
    return WindowsRead(mosaic, values, valid, kept.on_grid(mosaic.shape), int((~held).sum()))


def _with_data(scene: Scene, reader: SceneReader, windows: Windows, most: int) -> NDArray[np.int64]:
    """The corners of the first `most` windows that have data at their centre, in row order."""
    found: list[tuple[int, int]] = []
    for row, col in windows.corners[: TRIES * most].tolist():
        centre = min(row + windows.side_px // 2, scene.rows - 1), min(col + windows.side_px // 2, scene.cols - 1)
        if len(found) < most and reader.read(Window(centre[1], centre[0], 1, 1))[1].any():
            found.append((row, col))
    return np.array(sorted(found), np.int64).reshape(-1, 2)


def clusters_of(labels: LabelList) -> NDArray[np.int32]:
    """Labels of one class that lie side by side, numbered from 1."""
    pairs = cKDTree(labels.places).query_pairs(NEIGHBOURS_PX, output_type="ndarray")
    pairs = pairs[labels.values[pairs[:, 0]] == labels.values[pairs[:, 1]]]
    count = len(labels.values)
    graph = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    clusters: NDArray[np.int32] = connected_components(graph, directed=False)[1]
    return clusters.astype(np.int32) + np.int32(1)
