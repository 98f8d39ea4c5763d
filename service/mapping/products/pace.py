"""PACE OCI L2 SFREFL and other level 2 files with spectra: netCDF-4 in swath geometry.

Layout: NASA's OB.DAAC level 2 format, and the readers of HyperCoast and SNAP.
"""

from __future__ import annotations

import numpy as np

from hyperscene.service.mapping.products.cube_files import cube_image
from hyperscene.service.mapping.products.hdf5 import Hdf5File
from hyperscene.service.mapping.products.planes import find_positions
from hyperscene.service.mapping.products.product import CubeDataset, MaskKind, MaskLayer, Plane, Product

CUBES = {"rhos": "reflectance", "Rrs": "1/sr"}
FLAGS: dict[MaskKind, str] = {"cloud": "CLDICE", "saturated": "HILT"}


def describe(file: Hdf5File) -> Product | None:
    """The product; None if the file is of another sensor."""
    name = next((name for name in CUBES if file.has(f"geophysical_data/{name}")), None)
    if name is None or not file.has("sensor_band_parameters/wavelength_3d"):
        return None
    cube = f"geophysical_data/{name}"
    image = cube_image(file, [CubeDataset(cube, "rcb")], nodata=file.number("_FillValue", cube))
    nm = file.values("sensor_band_parameters/wavelength_3d")
    scale, offset = file.number("scale_factor", cube), file.number("add_offset", cube)
    return Product(
        sensor="PACE OCI",
        level="L2",
        name=file.path.stem,
        image=image,
        acquired=file.text("time_coverage_start"),
        unit=CUBES[name],
        wavelengths_nm=nm if nm is not None and len(nm) == image.bands else None,
        scales=np.full(image.bands, 1.0 if scale is None else scale),
        offsets=np.full(image.bands, offset or 0.0),
        masks=_masks(file),
        ground=find_positions(file, "navigation_data/longitude", "navigation_data/latitude"),
    )


def _masks(file: Hdf5File) -> tuple[MaskLayer, ...]:
    """The bits of `l2_flags`, by the names that the file gives them."""
    flags = "geophysical_data/l2_flags"
    bits = file.attribute_list("flag_masks", flags) if file.has(flags) else None
    names = file.text("flag_meanings", flags).split() if bits is not None else []
    known = {} if bits is None else dict(zip(names, bits, strict=False))
    return tuple(
        MaskLayer(kind, Plane(file.path, flags), bits=int(known[name])) for kind, name in FLAGS.items() if name in known
    )
