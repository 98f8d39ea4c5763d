"""`hyperscene inspect`: show a scene's or a bundle's metadata on one screen."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperscene.errors import BandsMissing, OptionsUnusable
from hyperscene.json_text import json_text
from hyperscene.model.bundle import DEMO_BUNDLE, Bundle, read_bundle
from hyperscene.service.cli import DONE
from hyperscene.service.commands.options import add_scene_options, open_given_scene
from hyperscene.service.mapping.band_view import (
    BandView,
    all_bands_view,
    band_warnings,
    covered_share,
    fit_text,
    sample_pixels,
    unit_warning,
    view_scene,
)
from hyperscene.service.mapping.describe import describe_ground, describe_header, mask_shares
from hyperscene.service.mapping.engine_health import checking_device
from hyperscene.service.mapping.engines import check_bundle
from hyperscene.service.mapping.pictures import write_quicklook
from hyperscene.service.mapping.scenes import Scene

LABEL_WIDTH = 13
# Larger scenes are not read as a whole to count valid pixels; the share is estimated from some rows.
COUNTED_SAMPLES = 500_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene inspect`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a scene, or a bundle (.onnx)")
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="B",
        help="a bundle, or a folder of them, to match the scene with (demo)",
    )
    add_scene_options(parser)
    parser.add_argument("--quicklook", type=Path, metavar="PNG", help="write a picture: true colour and false colour")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Show a bundle, or a scene and how it matches a bundle."""
    if options.path.suffix.lower() == ".onnx":
        bundle = read_bundle(options.path)
        check_bundle(bundle, checking_device(bundle))
        document = describe_bundle(bundle)
    else:
        scene = open_given_scene(options.path, options)
        document = describe_scene(scene, _bundles(options.bundle or DEMO_BUNDLE)) | {"scene": str(options.path)}
        if options.quicklook is not None:
            write_quicklook(scene, options.quicklook)
    print(json_text(document, indent=2) if options.json else _screen(document))
    return DONE


def _bundles(path: Path) -> list[Bundle]:
    """The bundle at a path, or those in a folder."""
    paths = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    if not paths:
        raise OptionsUnusable(f"{path} holds no bundle (.onnx): give another folder, or a bundle")
    return [read_bundle(found) for found in paths]


def describe_scene(scene: Scene, bundles: Sequence[Bundle]) -> dict[str, Any]:
    """Everything `inspect` shows of a scene; pixels are judged in the bands of the first bundle that fits."""
    warnings = list(scene.warnings)
    matches = [_describe_match(scene, bundle) for bundle in bundles]
    chosen = next((place for place, match in enumerate(matches) if match["is_mappable"]), None)
    view = all_bands_view(scene) if chosen is None else view_scene(scene, bundles[chosen].manifest)
    share, is_exact, spectra = _sample(view)
    if chosen is not None:
        manifest = bundles[chosen].manifest
        warnings += band_warnings(view.match, manifest)
        warnings += [unusual] if (unusual := unit_warning(spectra, manifest)) else []
    if share == 0:
        warnings.append("no valid pixel was found: the whole map would be class 0")
    nm = scene.wavelengths_nm
    return {
        "scene": str(scene.path),
        **describe_header(scene),
        **describe_ground(scene),
        "wavelengths_nm": None if nm is None else [round(float(nm.min()), 2), round(float(nm.max()), 2)],
        "values": None if not spectra.size else [float(spectra.min()), float(spectra.max())],
        "valid_share": round(share, 6),
        "valid_share_is_exact": is_exact,
        "mask_shares": mask_shares(scene),
        **matches[chosen or 0],
        "bundles": matches,
        "warnings": warnings,
    }


def _describe_match(scene: Scene, bundle: Bundle) -> dict[str, Any]:
    """How a bundle fits a scene."""
    try:
        view = view_scene(scene, bundle.manifest)
        match, is_mappable, fit = _match_text(view, bundle), True, _describe_fit(view, bundle)
    except BandsMissing as error:
        match, is_mappable, fit = f"does not match: {error}", False, None
    return {"bundle": bundle.manifest.name, "match": match, "fit": fit, "is_mappable": is_mappable}


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Everything `inspect` shows of a bundle that passed its self-check."""
    manifest, training = bundle.manifest, bundle.manifest.training
    nm, data = manifest.wavelengths_nm, training.get("data", {})
    return {
        "bundle": str(bundle.path),
        "name": manifest.name,
        "description": training.get("description"),
        "sensor": data.get("sensor"),
        "acquired": data.get("acquired"),
        "classes": manifest.class_names,
        "bands": manifest.bands,
        "wavelengths_nm": None if nm is None else [min(nm), max(nm)],
        "values": list(manifest.value_range),
        "patch_px": manifest.patch_px,
        "attention": manifest.attention,
        "head": manifest.head,
        "split": training.get("split"),
        "recipe": _name_of(training.get("recipe")),
        "seed": training.get("seed"),
        "scores": {name: training.get("scores", {}).get(name) for name in ("oa", "aa", "kappa", "pixels")},
        "cross_validation": training.get("cross_validation"),
        "sha256": bundle.sha256,
        "self_check": "passed",
    }


def _sample(view: BandView) -> tuple[float, bool, Any]:
    """The share of valid pixels, whether it is exact, and some spectra."""
    scene = view.scene
    with view.open() as pixels:
        spectra, share = sample_pixels(pixels, scene.rows)
        if scene.rows * scene.cols * len(scene.bands) > COUNTED_SAMPLES:
            return share, False, spectra
        step = max(1, 16_000_000 // (scene.cols * len(scene.bands)))
        valid = sum(
            int(pixels.read(top, min(top + step, scene.rows)).valid.sum()) for top in range(0, scene.rows, step)
        )
    return valid / (scene.rows * scene.cols), True, spectra


def _match_text(view: BandView, bundle: Bundle) -> str:
    bands = bundle.manifest.bands
    return {
        "same": f"{bands} bands, the same wavelengths",
        "resampled": f"{bands} bands, resampled from {len(view.scene.bands)} of the scene's",
        "by count": f"{bands} bands, by their order: the wavelengths are unknown",
    }[view.match.kind] + fit_text(view.match, bundle.manifest)


def _describe_fit(view: BandView, bundle: Bundle) -> dict[str, Any] | None:
    """How well the scene's wavelengths cover the bundle's; None without wavelengths."""
    covered = covered_share(view.match, bundle.manifest)
    return None if covered is None else {
        "covered_share": round(covered, 4),
        "largest_gap_nm": round(view.match.largest_gap_nm, 1),
        "bridged_bands": view.match.bridged_bands,
    }  # fmt: skip


def _name_of(recipe: Any) -> str | None:
    return recipe.get("name") if isinstance(recipe, dict) else recipe


def _screen(document: dict[str, Any]) -> str:
    lines = []
    for label, value in (_bundle_lines if "classes" in document else _scene_lines)(document):
        words = textwrap.wrap(str(value), 120 - LABEL_WIDTH - 1) or [""]
        lines.append(f"{label:<{LABEL_WIDTH}} {words[0]}")
        lines += [" " * (LABEL_WIDTH + 1) + line for line in words[1:]]
    return "\n".join(lines)


def _scene_lines(scene: dict[str, Any]) -> list[tuple[str, Any]]:
    nm, values = scene["wavelengths_nm"], scene["values"]
    bad = f" ({scene['bad_bands']} bad ones dropped)" if scene["bad_bands"] else ""
    width, height = scene["pixel_size"]
    if ground := scene.get("map"):
        width, height = abs(ground["transform"][0]), abs(ground["transform"][4])
    about = "" if scene["valid_share_is_exact"] else "about "
    unit = f" ({scene['unit']})" if scene.get("unit") else ""
    masks = ", ".join(
        f"{kind} {100 * share:.1f} %{'' if kind in scene.get('masks', []) else ' (not applied)'}"
        for kind, share in scene["mask_shares"].items()
    )
    product = " ".join(filter(None, (scene.get("sensor"), scene.get("level"), scene.get("acquired", "")[:19])))
    return [
        ("scene", f"{scene['scene']} ({scene['format']})"),
        *([("product", product)] if product else []),
        ("size", f"{scene['rows']} rows x {scene['cols']} cols x {scene['bands']} bands{bad}, {scene['type']}"),
        ("wavelengths", "unknown" if nm is None else f"{nm[0]:g} to {nm[1]:g} nm"),
        ("values", "none" if values is None else f"{values[0]:.4g} to {values[1]:.4g} in some rows{unit}"),
        ("no data", ", ".join(scene["no_data"]) or "no value declared"),
        ("valid", f"{about}{100 * scene['valid_share']:.1f} % of the pixels"),
        *([("masks", masks)] if masks else []),
        ("CRS", f"{ground['crs']}, on which the map is laid out" if ground else scene["crs"] or "none"),
        ("pixel", f"{width:g} x {height:g}" if not scene["ground_control_points"] else
         f"{scene['ground_control_points']} ground control points"),
        *(("bundle", f"{bundle['bundle']}: {bundle['match']}") for bundle in scene["bundles"]),
        *(("warning", warning) for warning in scene["warnings"]),
    ]  # fmt: skip


def _bundle_lines(bundle: dict[str, Any]) -> list[tuple[str, Any]]:
    nm, scores, split = bundle["wavelengths_nm"], bundle["scores"], bundle["split"]
    low, high = bundle["values"]
    sensor = " ".join(filter(None, (bundle["sensor"], (bundle["acquired"] or "")[:19])))
    percent = "  ".join(
        f"{label} {100 * scores[name]:.2f}"
        for label, name in (("OA", "oa"), ("AA", "aa"), ("kappa", "kappa"))
        if scores[name] is not None
    )
    return [
        ("bundle", f"{bundle['bundle']} ({bundle['name']})"),
        *([("about", bundle["description"])] if bundle["description"] else []),
        *([("sensor", sensor)] if sensor else []),
        ("classes", f"{len(bundle['classes'])}: {', '.join(bundle['classes'])}"),
        ("bands", f"{bundle['bands']}" + ("" if nm is None else f", {nm[0]:g} to {nm[1]:g} nm")),
        ("values", f"{low:.4g} to {high:.4g}"),
        ("network", f"{bundle['attention']}, head {bundle['head']}, patches of {bundle['patch_px']} px"),
        ("split", "unknown" if not split else _split_text(split)),
        ("recipe", f"{bundle['recipe'] or 'unknown'}, seed {bundle['seed']}"),
        ("scores", f"{percent}  (in %, {scores['pixels']} test pixels)" if percent else _estimate_text(bundle)),
        ("self-check", bundle["self_check"]),
        ("sha256", bundle["sha256"]),
    ]


def _split_text(split: dict[str, Any]) -> str:
    counts = ", ".join(f"{split[part]} to {verb}" for part, verb in (
        ("train", "train"), ("validation", "validate"), ("test", "test")) if part in split)  # fmt: skip
    return f"{split.get('name')}: {counts or 'pixels not counted'}"


def _estimate_text(bundle: dict[str, Any]) -> str:
    """What cross-validation found, for a bundle without test pixels."""
    found = bundle["cross_validation"] or {}
    main = found.get("far_from_labels") or found.get("close_to_labels")
    if not main:
        return "unknown"
    low, high = main["oa"]["interval"]
    return (
        f"OA {100 * main['oa']['value']:.1f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f}, by cross-validation "
        f"of {main['pixels']} labels in {main['clusters']} clusters"
    )
