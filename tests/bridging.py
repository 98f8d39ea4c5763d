"""Measures what interpolation across missing bands costs in accuracy: the limit in `model/spectra.py` comes from it.

Run by hand: python -m tests.bridging BUNDLE SCENE LABELS [--wavelengths FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hyperscene.model import spectra
from hyperscene.model.bundle import Bundle, load_bundle
from hyperscene.service.mapping.band_view import PixelRows, fit_bands, match_manifest
from hyperscene.service.mapping.options import MapOptions
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.evaluate import map_array

CENTERS_NM = (560, 720, 1050, 1400, 1650, 1875, 2200)
WIDTHS_NM = (30, 50, 75, 100, 150, 200, 250)


def accuracy_without(bundle: Bundle, scene: LabelledScene, low_nm: float, high_nm: float) -> tuple[float, int]:
    """The overall accuracy of a map without the scene's bands between two wavelengths, and how many are bridged."""
    nm, is_labelled = scene.wavelengths_nm, scene.labels > 0
    assert nm is not None
    kept = np.flatnonzero((nm <= low_nm) | (nm >= high_nm))
    match = match_manifest(nm[kept], len(kept), bundle.manifest)
    fill = np.array(bundle.manifest.nodata_fill, np.float32)
    cube = fit_bands(scene.cube[..., kept[match.bands]], scene.valid, match.weights, fill)
    predicted = map_array(bundle, PixelRows(0, cube, scene.valid), MapOptions())
    return float((predicted == scene.labels)[is_labelled].mean()), match.bridged_bands


def main() -> None:
    """Print a table: points of overall accuracy lost by gap width, for gaps round several wavelengths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("scene", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--wavelengths", type=Path)
    options = parser.parse_args()
    spectra.WIDEST_BRIDGE_NM = np.inf
    bundle = load_bundle(options.bundle)
    scene = load_labelled_scene(LabelledFiles(options.scene, options.labels, wavelengths=options.wavelengths))
    whole, _ = accuracy_without(bundle, scene, 0, 0)
    print(f"{scene.name}: OA {100 * whole:.1f} % with all bands; points lost (bands bridged) by width of the gap in nm")
    print("| gap round | " + " | ".join(map(str, WIDTHS_NM)) + " |")
    print("|---|" + "---|" * len(WIDTHS_NM))
    for center in CENTERS_NM:
        cells = []
        for width in WIDTHS_NM:
            found, bridged = accuracy_without(bundle, scene, center - width / 2, center + width / 2)
            cells.append(f"{100 * (whole - found):.1f} ({bridged})" if bridged else "-")
        print(f"| {center} nm | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
