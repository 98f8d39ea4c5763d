"""Products as scenes: their metadata, the checks of all scenes, and the bands that are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.transform import Affine
from rasterio.windows import Window

from hyperscene.errors import DtypeUnsupported, SceneUnreadable, SceneUnusable
from hyperscene.service.mapping.gdal import DTYPES
from hyperscene.service.mapping.georeference import georeference_warnings
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.products.product import CubeImage, DroppedBand, Numbers, Product, RasterImage
from hyperscene.service.mapping.remote import is_remote
from hyperscene.service.mapping.samples import is_nodata, open_probe
from hyperscene.service.mapping.scene_header import Scene

# Where a scene is probed for empty bands, as shares of its rows and columns, the middle first; and how wide. If the
# middle row has no value at all, the others are not probed: each may cost a row of large blocks.
PROBES = [(row, col) for row in (0.5, 0.3, 0.7, 0.1, 0.9) for col in (0.5, 0.25, 0.75)]
MIDDLE_ROW = PROBES[0][0]
PROBE_COLS = 64
EMPTY = "empty"

OpenRaster = Callable[[Path, str, Product], Scene]  # path, driver, product


def raster_scene(product: Product, open_raster: OpenRaster) -> Scene:
    """The scene of a product whose images GDAL reads."""
    image = product.image
    assert isinstance(image, RasterImage)
    if not image.counts:
        scene = open_raster(image.paths[0], image.driver, product)
    else:
        scene = _joined(product, image, [open_raster(*part) for part in _parts(product, image)])
    if product.ground is not None:  # tells more than what a raster in sensor geometry says of its place
        unplaced = georeference_warnings(scene.transform, scene.gcps, scene.crs)
        warnings = tuple(warning for warning in scene.warnings if warning not in unplaced)
        scene = replace(scene, crs=None, transform=Affine.identity(), gcps=(), warnings=warnings)
    return replace(
        scene,
        name=product.name,
        sensor=product.sensor,
        level=product.level,
        acquired=product.acquired,
        unit=product.unit,
        image=image,
        ground=product.ground,
        crs=product.crs or scene.crs,
        transform=product.transform or scene.transform,
        warnings=(*scene.warnings, *product.warnings),
    )


def _parts(product: Product, image: RasterImage) -> Iterator[tuple[Path, str, Product]]:
    """Each image with its own part of the bands."""
    first = 0
    for path, count in zip(image.paths, image.counts, strict=True):
        own = slice(first, first + count)
        dropped = {band - first: reason for band, reason in product.dropped.items() if first < band <= first + count}
        yield (
            path,
            image.driver,
            replace(
                product,
                wavelengths_nm=_sliced(product.wavelengths_nm, own),
                fwhm_nm=_sliced(product.fwhm_nm, own),
                scales=_sliced(product.scales, own),
                offsets=_sliced(product.offsets, own),
                dropped=dropped,
            ),
        )
        first += count


def _sliced(values: Numbers | None, own: slice) -> Numbers | None:
    return None if values is None else values[own]


def _joined(product: Product, image: RasterImage, scenes: Sequence[Scene]) -> Scene:
    """One scene with the bands of several images, which are numbered from 1 across them."""
    first = scenes[0]
    starts = np.cumsum([0, *image.counts])
    firsts = image.firsts or ((0, 0),) * len(scenes)
    if any((scene.rows, scene.cols, scene.dtype) != (first.rows, first.cols, first.dtype) for scene in scenes):
        raise SceneUnreadable(f"the images of {product.name} differ in size or type: copy the product again")
    if any(len(scene.bands) + scene.bad_bands != count for scene, count in zip(scenes, image.counts, strict=True)):
        raise SceneUnreadable(f"the images of {product.name} do not have the bands of its metadata: copy it again")
    numbered = list(zip(scenes, starts[:-1].tolist(), strict=True))
    return replace(
        first,
        rows=min(scene.rows - top for scene, (top, _) in zip(scenes, firsts, strict=True)),
        cols=min(scene.cols - left for scene, (_, left) in zip(scenes, firsts, strict=True)),
        blocks=None,  # those of the first image only
        bands=tuple(band + start for scene, start in numbered for band in scene.bands),
        dropped=tuple(replace(band, number=band.number + start) for scene, start in numbered for band in scene.dropped),
        nodata=tuple(value for scene in scenes for value in scene.nodata),
        warnings=tuple(dict.fromkeys(warning for scene in scenes for warning in scene.warnings)),
        wavelengths_nm=_concatenated([scene.wavelengths_nm for scene in scenes]),
        fwhm_nm=_concatenated([scene.fwhm_nm for scene in scenes]),
        scales=np.concatenate([scene.scales for scene in scenes]),
        offsets=np.concatenate([scene.offsets for scene in scenes]),
    )


def _concatenated(lists: Sequence[Numbers | None]) -> Numbers | None:
    known = [values for values in lists if values is not None]
    return np.concatenate(known) if len(known) == len(lists) else None


def cube_scene(product: Product, limits: Limits | None) -> Scene:
    """The scene of a product whose cubes are in an HDF5 file; its bands are ordered by wavelength."""
    image = product.image
    assert isinstance(image, CubeImage)
    if image.dtype not in DTYPES:
        raise DtypeUnsupported(f"{product.name} holds {image.dtype} samples; real numbers are needed")
    if limits is not None:
        limits.check_size(product.name, image.rows, image.cols, image.bands)
        sample_bytes = np.dtype(image.dtype).itemsize
        limits.check_unpacked(product.name, image.rows * image.cols * image.bands * sample_bytes, image.chunk_bytes)
        limits.check_row(product.name, image.cols, image.bands)
    nm = product.wavelengths_nm
    used = np.array([index for index in range(image.bands) if index + 1 not in product.dropped], np.int64)
    if not len(used):
        raise SceneUnreadable(f"{product.name} marks every band as bad: order it again")
    if nm is not None:
        used = used[np.argsort(nm[used], kind="stable")]
    transform = product.transform or Affine.identity()
    return Scene(
        path=image.path,
        driver="HDF5",
        rows=image.rows,
        cols=image.cols,
        dtype=image.dtype,
        bands=tuple(int(index) + 1 for index in used),
        wavelengths_nm=None if nm is None else nm[used],
        fwhm_nm=None if product.fwhm_nm is None else product.fwhm_nm[used],
        scales=np.ones(len(used)) if product.scales is None else product.scales[used],
        offsets=np.zeros(len(used)) if product.offsets is None else product.offsets[used],
        nodata=(image.nodata,) * len(used),
        has_mask=False,
        crs=product.crs,
        transform=transform,
        gcps=(),
        warnings=(
            *product.warnings,
            *(() if product.ground is not None else georeference_warnings(transform, (), product.crs)),
        ),
        dropped=tuple(
            DroppedBand(band, None if nm is None or nm[band - 1] <= 0 else float(nm[band - 1]), reason)
            for band, reason in sorted(product.dropped.items())
        ),
        image=image,
        ground=product.ground,
        name=product.name,
        sensor=product.sensor,
        level=product.level,
        acquired=product.acquired,
        unit=product.unit,
    )


def with_wavelengths(scene: Scene, nm: Numbers, name: str) -> Scene:
    """The scene with other wavelengths: of the bands that are used, or of all bands of the file."""
    if len(nm) == len(scene.bands) + scene.bad_bands:
        nm = nm[np.array(scene.bands) - 1]
    elif len(nm) != len(scene.bands):
        raise SceneUnusable(f"{name} contains {len(nm)} wavelengths for {len(scene.bands)} bands: write one for each")
    return replace(scene, wavelengths_nm=nm, fwhm_nm=None)


def without_empty_bands(scene: Scene, *, is_packed: bool = False) -> Scene:
    """The scene without the bands that hold no value wherever others do, by some probes of its pixels.

    Remote files and packed ENVI data are not probed, because a probe may cost as much as the whole scene.
    """
    if is_remote(scene.path) or is_packed or len(scene.bands) == 1:
        return scene
    empty = _empty_bands(scene)
    if not empty.any():
        return scene
    nm = scene.wavelengths_nm
    dropped = [
        DroppedBand(scene.bands[index], None if nm is None else float(nm[index]), EMPTY)
        for index in np.flatnonzero(empty)
    ]
    ordered = tuple(sorted((*scene.dropped, *dropped), key=lambda band: band.number))
    return replace(scene.narrowed(np.flatnonzero(~empty)), dropped=ordered)


def _empty_bands(scene: Scene) -> NDArray[np.bool_]:
    """Bands without any value at the probed pixels, if other bands have values there."""
    has_value = np.zeros(len(scene.bands), bool)
    width = min(PROBE_COLS, scene.cols)
    with open_probe(scene, width) as samples:
        for row, col in PROBES if samples is not None else ():
            if row != MIDDLE_ROW and not has_value.any():
                break
            left = round(col * (scene.cols - width))
            raw = samples.read(list(scene.bands), window=Window(left, round(row * (scene.rows - 1)), width, 1))
            has_value |= [
                bool((~is_nodata(raw[[band]], (value,)) & _is_finite(raw[band])).any())
                for band, value in enumerate(scene.nodata)
            ]
            if has_value.all():
                break
    return ~has_value & has_value.any()


def _is_finite(samples: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(samples) if samples.dtype.kind == "f" else np.ones(samples.shape, bool)


def with_warnings(scene: Scene) -> Scene:
    """The scene with a warning that names the bands it does not use."""
    found = dropped_text(scene.dropped)
    return replace(scene, warnings=(*scene.warnings, *([f"bands that are not used: {found}"] if found else [])))


def dropped_text(dropped: Sequence[DroppedBand]) -> str:
    """Bands by reason, such as `130 to 135 (1331 to 1390 nm): empty`."""
    texts = []
    for reason in dict.fromkeys(band.reason for band in dropped):
        bands = [band for band in dropped if band.reason == reason]
        runs = [list(run) for _, run in groupby(enumerate(bands), lambda item: item[1].number - item[0])]
        texts.append(", ".join(_run_text([band for _, band in run]) for run in runs) + f": {reason}")
    return "; ".join(texts)


def _run_text(run: Sequence[DroppedBand]) -> str:
    numbers = f"{run[0].number}" if len(run) == 1 else f"{run[0].number} to {run[-1].number}"
    known = [band.wavelength_nm for band in run if band.wavelength_nm is not None]
    if not known:
        return numbers
    low, high = min(known), max(known)
    return f"{numbers} ({low:.0f} nm)" if len(known) == 1 else f"{numbers} ({low:.0f} to {high:.0f} nm)"
