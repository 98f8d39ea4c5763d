"""Samples of a scene as they are stored: from one file, from several, or from a product's cubes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from hyperscene.service.mapping.gdal import open_dataset
from hyperscene.service.mapping.products.cube_files import Report, open_in_place, probe_bytes
from hyperscene.service.mapping.products.image_files import open_image
from hyperscene.service.mapping.products.product import CubeImage
from hyperscene.service.mapping.remote_file import open_remote
from hyperscene.service.mapping.scene_header import Scene

# So much may be unpacked to probe a few pixels of a cube.
PROBE_BYTES = 128 << 20
# Blocks of a probe are not read again; kept, they could be a row of them in all bands.
PROBE_CACHE_BYTES = 8 << 20


@contextmanager
def open_probe(scene: Scene, cols: int) -> Iterator[Any]:
    """As `open_samples`, for a few pixels, without rewriting a cube; None if they cost too much."""
    if not isinstance(scene.image, CubeImage):
        with open_samples(scene) as samples, rasterio.Env(GDAL_CACHEMAX=PROBE_CACHE_BYTES):
            yield samples
    elif scene.image.datasets[0].offset == 0 and probe_bytes(scene.image, cols) > PROBE_BYTES:
        yield None
    else:
        with open_in_place(scene.image) as cube:
            yield cube


@contextmanager
def open_samples(scene: Scene, report: Report | None = None) -> Iterator[Any]:
    """What reads a scene's samples: a GDAL dataset, or an object with its method `read`."""
    if scene.image is not None:
        with open_image(scene.image, scene.work, report) as image:
            yield image
    else:
        with open_remote(scene.path) as remote, open_dataset(scene.path, scene.driver, remote) as dataset:
            yield dataset


def is_nodata(raw: NDArray[Any], nodata: tuple[float | None, ...]) -> NDArray[np.bool_]:
    """Pixels where a band has its no-data value; zeros count only in all bands, because dark pixels hold real zeros."""
    any_band = np.zeros(raw.shape[1:], bool)
    zero_bands = [band for band, value in enumerate(nodata) if value == 0]
    for band, value in enumerate(nodata):
        if value is not None and value != 0 and not np.isnan(value):
            any_band |= raw[band] == value
    if zero_bands:
        any_band |= (raw[zero_bands] == 0).all(axis=0)
    return any_band
