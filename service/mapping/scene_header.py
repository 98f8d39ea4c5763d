"""What is known of a scene before its pixels are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine

from hyperscene.errors import DtypeUnsupported, SceneUnreadable
from hyperscene.model.spectra import Wavelengths
from hyperscene.service.mapping.band_metadata import read_band_metadata
from hyperscene.service.mapping.block_map import BlockMap
from hyperscene.service.mapping.gdal import DTYPES
from hyperscene.service.mapping.georeference import read_georeference
from hyperscene.service.mapping.prefetch import Stop
from hyperscene.service.mapping.products.product import CubeImage, DroppedBand, Ground, MaskLayer, Product, RasterImage
from hyperscene.service.mapping.remote import name_of
from hyperscene.service.mapping.scene_checks import check_data_size


@dataclass(frozen=True)
class Scene:
    """A scene's header, checked; bands are the good ones only."""

    path: Path
    name: str  # the name its owner gave it
    driver: str
    rows: int
    cols: int
    dtype: str
    bands: tuple[int, ...]  # GDAL's band numbers, from 1
    wavelengths_nm: Wavelengths | None
    fwhm_nm: Wavelengths | None
    scales: NDArray[np.float64]
    offsets: NDArray[np.float64]
    nodata: tuple[float | None, ...]
    has_mask: bool
    crs: CRS | None
    transform: Affine
    gcps: tuple[GroundControlPoint, ...]  # in `crs`, if the file has points instead of a transform
    warnings: tuple[str, ...]
    version: str = ""  # fingerprint of a remote file, which may be replaced while it is read
    sensor: str = ""
    level: str = ""
    acquired: str = ""  # ISO 8601
    unit: str = ""
    dropped: tuple[DroppedBand, ...] = ()
    image: RasterImage | CubeImage | None = None  # of a product; otherwise the file at `path`
    masks: tuple[MaskLayer, ...] = ()  # that are applied
    layers: tuple[MaskLayer, ...] = ()  # that could be
    ground: Ground | None = None  # where the pixels of a scene in sensor geometry are
    blocks: BlockMap | None = None  # of a TIFF with absent blocks that is on this machine
    work: Path | None = None  # for cubes that have to be rewritten; None: a folder of the process

    @property
    def is_georeferenced(self) -> bool:
        return bool(self.gcps) or self.transform != Affine.identity()

    @property
    def mask_kinds(self) -> tuple[str, ...]:
        """The kinds of masks that its product has."""
        return tuple(sorted({layer.kind for layer in self.layers} - {"missing"}))

    @property
    def bad_bands(self) -> int:
        return len(self.dropped)

    def narrowed(self, indices: NDArray[np.int64]) -> Scene:
        """The same scene with the bands at `indices` only."""
        return replace(
            self,
            bands=tuple(self.bands[index] for index in indices),
            wavelengths_nm=None if self.wavelengths_nm is None else self.wavelengths_nm[indices],
            fwhm_nm=None if self.fwhm_nm is None else self.fwhm_nm[indices],
            scales=self.scales[indices],
            offsets=self.offsets[indices],
            nodata=tuple(self.nodata[index] for index in indices),
        )


def read_header(
    path: Path,
    driver: str,
    dataset: Any,
    *,
    counts_packed: bool,
    stop: Stop | None = None,
    product: Product | None = None,
) -> Scene:
    """The header of a file that GDAL has opened; a product's own metadata have precedence."""
    name = name_of(path)
    dtype = str(dataset.dtypes[0])
    if any(kind not in DTYPES for kind in dataset.dtypes):
        raise DtypeUnsupported(f"{name} holds {dtype} samples; real numbers are needed: {', '.join(DTYPES)}")
    if driver == "ENVI":
        check_data_size(path, dataset, counts_packed=counts_packed, stop=stop)
    warnings: list[str] = []
    if product is not None and product.wavelengths_nm is not None and len(product.wavelengths_nm) != dataset.count:
        warnings.append(
            f"{name} has {dataset.count} bands and the product's metadata describe {len(product.wavelengths_nm)}: the "
            "metadata of the bands were ignored"
        )
        product = None
    metadata = read_band_metadata(name, dataset, product)
    indices = [band - 1 for band in metadata.bands]
    georeference = read_georeference(name, dataset)
    of_product = (None, None) if product is None else (product.scales, product.offsets)
    scales, offsets = (
        _of_bands(name, own, numbers)[indices] / metadata.scale_factor
        for own, numbers in zip(of_product, (dataset.scales, dataset.offsets), strict=True)
    )
    if not np.isfinite([scales.astype(np.float32), offsets.astype(np.float32)]).all():
        raise SceneUnreadable(f"a scale or an offset of {name} is not a finite number in 32 bits: correct it")
    return Scene(
        path=path,
        name=name,
        driver=driver,
        rows=dataset.height,
        cols=dataset.width,
        dtype=dtype,
        bands=metadata.bands,
        dropped=metadata.dropped,
        wavelengths_nm=metadata.wavelengths_nm,
        fwhm_nm=metadata.fwhm_nm,
        scales=scales,
        offsets=offsets,
        nodata=tuple(
            product.nodata if product is not None and dataset.nodatavals[index] is None else dataset.nodatavals[index]
            for index in indices
        ),
        has_mask=metadata.has_mask,
        crs=georeference.crs,
        transform=georeference.transform,
        gcps=georeference.gcps,
        warnings=(*warnings, *metadata.warnings, *georeference.warnings),
    )


def _of_bands(name: str, of_product: NDArray[np.float64] | None, of_file: Sequence[float]) -> NDArray[np.float64]:
    if of_product is not None and len(of_product) != len(of_file):
        raise SceneUnreadable(
            f"{name} has {len(of_file)} bands and its product {len(of_product)} scales: copy the product again"
        )
    return np.array(of_file) if of_product is None else of_product
