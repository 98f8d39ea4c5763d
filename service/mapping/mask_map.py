"""mask.tif: why a pixel has no class - no data in the product, or one of its masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from hyperscene.errors import write_error
from hyperscene.service.mapping.gdal import GDAL_ERRORS, ignore_missing_georeference
from hyperscene.service.mapping.products.masks import CODES, MISSING, open_masks
from hyperscene.service.mapping.rasters import GDAL_ENV, create_plain, declare_nodata, plain_name, require_complete
from hyperscene.service.mapping.scenes import Scene

MASK_NAME = "mask.tif"
NAMES = {0: "mapped", MISSING: "no data"} | {code: kind for kind, code in CODES.items()}
OUTSIDE = 255  # of a swath
ROWS = 256


def write_mask(folder: Path, scene: Scene) -> dict[str, int]:
    """Write the plain raster beside that of the classes; returns the pixels that each mask took."""
    counts = np.zeros(len(NAMES), np.int64)
    try:
        with (
            rasterio.Env(**GDAL_ENV),
            create_plain(plain_name(folder, MASK_NAME), scene, 1, "uint8") as file,
        ):
            file.set_band_description(1, "mask")
            file.update_tags(class_names="{" + ", ".join(NAMES[value] for value in sorted(NAMES)) + "}")
            for window, codes in _codes(folder, scene):
                file.write(codes, 1, window=window)
                counts += np.bincount(codes.ravel(), minlength=len(counts))
        require_complete(file)
        declare_nodata(plain_name(folder, MASK_NAME), OUTSIDE)
    except GDAL_ERRORS as error:
        raise write_error(error) from error
    taken = {layer.kind for layer in scene.masks}
    return {kind: int(counts[code]) for kind, code in CODES.items() if kind in taken}


def _codes(folder: Path, scene: Scene) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    with ignore_missing_georeference():
        classes = rasterio.open(plain_name(folder, "classes.tif"), driver="GTiff")
    with classes, open_masks(scene.masks, scene.bands, scene.work) as masks:
        for top in range(0, scene.rows, ROWS):
            window = Window(0, top, scene.cols, min(ROWS, scene.rows - top))
            yield window, masks.codes(window, classes.read(1, window=window) > 0)
