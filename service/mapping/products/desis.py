"""DESIS L2A and L1C: GeoTIFF with an ENVI header and METADATA.xml beside it.

Layout: DLR's DESIS product specification as read by EnMAP-Box, and the order of layers in QL_QUALITY-2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hyperscene.errors import SceneIncomplete, SceneUnreadable
from hyperscene.model.spectra import parse_list
from hyperscene.service.mapping.products.metadata_xml import read_xml, text_of
from hyperscene.service.mapping.products.product import MaskKind, MaskLayer, Numbers, Plane, Product, RasterImage

NAMES = re.compile(r"(?P<stem>DESIS-HSI-(?P<level>L1C|L2A)-.+?)-(METADATA\.xml|SPECTRAL_IMAGE\.(tiff?|hdr))", re.I)
# Layers of QL_QUALITY-2 from 1; 2 is land, 9 aerosol and 10 water vapour.
LAYERS: tuple[tuple[MaskKind, int], ...] = (
    ("shadow", 1), ("snow", 3), ("haze", 4), ("haze", 5), ("cloud", 6), ("cloud", 7), ("water", 8)
)  # fmt: skip
UNITS = {"L2A": "reflectance", "L1C": "W/(m2 sr um)"}
MAX_HEADER_BYTES = 4 << 20


def key_of(path: Path, siblings: Sequence[Path]) -> Path | None:
    """The image of the product that a file belongs to."""
    found = NAMES.fullmatch(path.name)
    if found is None:
        return None
    image = _sibling(found["stem"], r"-SPECTRAL_IMAGE\.tiff?", siblings)
    if image is None:
        raise SceneIncomplete(f"{path.name} lacks its image: add {found['stem']}-SPECTRAL_IMAGE.tif")
    has_bands = _sibling(found["stem"], r"-(SPECTRAL_IMAGE\.hdr|METADATA\.xml)", siblings)
    return image if has_bands is not None else None


def lacking_metadata(path: Path) -> str:
    """What an image without header and METADATA.xml lacks; nothing for other files."""
    found = NAMES.fullmatch(path.name)
    return f"{path.name} lacks its metadata: add {found['stem']}-METADATA.xml" if found is not None else ""


def describe(image: Path, siblings: Sequence[Path]) -> Product:
    """The product of an image."""
    found = NAMES.fullmatch(image.name)
    assert found is not None
    stem, level = found["stem"], found["level"].upper()
    header = _sibling(stem, r"-SPECTRAL_IMAGE\.hdr", siblings)
    metadata = _sibling(stem, r"-METADATA\.xml", siblings)
    root = None if metadata is None else read_xml(metadata)
    lists = _header_lists(header) if header is not None else {}
    if "wavelength" not in lists and root is not None:
        tags = {"wavelength": "wavelengthCenterOfBand", "fwhm": "wavelengthWidthOfBand",
                "data gain values": "gainOfBand", "data offset values": "offsetOfBand"}  # fmt: skip
        lists = {key: np.array([float(found.text or "nan") for found in root.iter(tag)]) for key, tag in tags.items()}
    nm, fwhm, gains, offsets = (_of_bands(lists, key) for key in (
        "wavelength", "fwhm", "data gain values", "data offset values"))  # fmt: skip
    quality = _sibling(stem, r"-QL_QUALITY-2\.tiff?", siblings)
    return Product(
        sensor="DESIS",
        level=level,
        name=stem,
        image=RasterImage((image,), "GTiff"),
        acquired="" if root is None else text_of(root, "base/temporalCoverage/startTime"),
        unit=UNITS[level],
        wavelengths_nm=nm,
        fwhm_nm=fwhm,
        scales=gains,
        offsets=offsets,
        masks=() if quality is None else tuple(MaskLayer(kind, Plane(quality, band=band)) for kind, band in LAYERS),
    )


def _of_bands(lists: dict[str, Numbers], key: str) -> Numbers | None:
    values = lists.get(key)
    return values if values is not None and len(values) and len(values) == len(lists["wavelength"]) else None


def _sibling(stem: str, ending: str, siblings: Sequence[Path]) -> Path | None:
    wanted = re.compile(re.escape(stem) + ending, re.IGNORECASE)
    return next((file for file in siblings if wanted.fullmatch(file.name)), None)


def _header_lists(header: Path) -> dict[str, Numbers]:
    """The lists of an ENVI header; its wavelengths are in nm."""
    if header.stat().st_size > MAX_HEADER_BYTES:
        raise SceneUnreadable(f"{header.name} is longer than {MAX_HEADER_BYTES >> 20} MB: it is no product's header")
    text = header.read_text(encoding="utf-8", errors="replace")
    lists = {}
    for key, values in re.findall(r"^[ \t]*([a-z ]+?)[ \t]*=[ \t]*\{([^{}]*)\}", text, re.MULTILINE | re.IGNORECASE):
        try:
            lists[re.sub(r"\s+", " ", key.lower())] = np.array(parse_list(values))
        except ValueError:  # a list of names
            continue
    return lists
