"""A description of a scene from its header, for the API and `hyperscene inspect`."""

from __future__ import annotations

from typing import Any

from rasterio.windows import Window

from hyperscene.service.mapping.gdal import JPEG_2000
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.options import STRIDES
from hyperscene.service.mapping.products.masks import open_masks
from hyperscene.service.mapping.products.product import CubeImage
from hyperscene.service.mapping.scenes import Scene

MASK_ROWS, COUNTED_PIXELS = 256, 50_000_000
FORMAT_NAMES = {"GTiff": "GeoTIFF", "ENVI": "ENVI", "HDF5": "HDF5", JPEG_2000: "JPEG 2000"}


def describe_header(scene: Scene) -> dict[str, Any]:
    """Size, bands, wavelengths, georeference and warnings; no pixel is read."""
    nm, transform, blocks = scene.wavelengths_nm, scene.transform, scene.blocks
    cells = blocks and {str(stride): blocks.count_cells(scene.bands, stride) for stride in STRIDES}
    return ({} if cells is None else {"cells_with_data": cells}) | {
        "format": "array" if _is_array(scene) else FORMAT_NAMES[scene.driver],
        "rows": scene.rows,
        "cols": scene.cols,
        "type": scene.dtype,
        "bands": len(scene.bands),
        "bad_bands": scene.bad_bands,
        "band_numbers": list(scene.bands),
        "wavelengths_nm": None if nm is None else [round(float(value), 4) for value in nm],
        # As text, because JSON has no NaN.
        "no_data": sorted({f"{value:g}" for value in scene.nodata if value is not None}),
        "crs": None if scene.crs is None else scene.crs.to_string(),
        "pixel_size": [_length(transform.a, transform.d), _length(transform.b, transform.e)],
        "transform": list(transform)[:6],
        "ground_control_points": len(scene.gcps),
        "is_georeferenced": scene.is_georeferenced,
        "warnings": list(scene.warnings),
        **describe_product(scene),
    }


def _is_array(scene: Scene) -> bool:
    """Whether the samples are in an array file, such as .npy or classic netCDF."""
    return isinstance(scene.image, CubeImage) and scene.image.datasets[0].offset > 0


def describe_product(scene: Scene) -> dict[str, Any]:
    """What is known of a scene from its product, and the bands that are not used; without what is unknown."""
    known = {
        "product": scene.name if scene.sensor else "",
        "sensor": scene.sensor,
        "level": scene.level,
        "acquired": scene.acquired,
        "unit": scene.unit,
        "masks": sorted({layer.kind for layer in scene.masks} - {"missing"}),
        "available_masks": list(scene.mask_kinds),
        "is_swath": scene.ground is not None,
        "dropped_bands": [
            {"band": band.number, "wavelength_nm": band.wavelength_nm, "reason": band.reason} for band in scene.dropped
        ],
    }
    return {name: value for name, value in known.items() if value}


def describe_ground(scene: Scene, limits: Limits | None = None) -> dict[str, Any]:
    """The grid of the map of a scene in sensor geometry; nothing for other scenes."""
    if scene.ground is None:
        return {}
    from hyperscene.service.mapping.swaths import open_ground  # 6 MB, for swaths only

    with open_ground(scene) as (placed, _):
        if limits is not None:
            limits.check_size(f"the map of {scene.name}", placed.rows, placed.cols, len(scene.bands))
        crs = None if placed.crs is None else placed.crs.to_string()
        return {"map": {"rows": placed.rows, "cols": placed.cols, "crs": crs, "transform": [*placed.transform][:6]}}


def mask_shares(scene: Scene) -> dict[str, float]:
    """The share of pixels in each kind of mask that the product has; kinds may overlap.

    Of more than COUNTED_PIXELS, evenly spaced rows are counted.
    """
    step = max(1, scene.rows * scene.cols // COUNTED_PIXELS)
    tops = range(0, scene.rows, MASK_ROWS * step)
    shares = {}
    for kind in scene.mask_kinds:
        masked = counted = 0
        layers = [layer for layer in scene.layers if layer.kind == kind]
        with open_masks(layers, scene.bands, scene.work) as masks:
            for top in tops:
                found = masks.is_masked(Window(0, top, scene.cols, min(MASK_ROWS, scene.rows - top)))
                masked, counted = masked + int(found.sum()), counted + found.size
        shares[kind] = round(masked / counted, 6)
    return shares


def _length(x: float, y: float) -> float:
    """The length of a pixel along an axis that may be rotated."""
    return round(float((x * x + y * y) ** 0.5), 9)
