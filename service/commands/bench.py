"""`hyperscene bench`: mapping speed as ratios, which are stable on a busy machine; `bench train`: training speed."""

from __future__ import annotations

import argparse
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.json_text import json_text
from hyperscene.progress import ProgressBar
from hyperscene.service.cli import DONE
from hyperscene.service.commands.options import add_bundle_option, add_engine_options, read_chosen_bundle
from hyperscene.service.mapping.benchmark import STAGES, BenchOptions, bench_folder, measure

CANDIDATES = {
    "eager": "torch eager, batch 128",
    "plain": "ONNX Runtime, caller cuts patches, batch 64",
    "onnxruntime": "hyperscene on ONNX Runtime, whole run",
    "openvino": "hyperscene on OpenVINO, whole run",
    "network": "engine alone, no scene",
    "ours": "hyperscene, whole run",
}
ANCHOR_BANDS = 100
LABELS = {
    "forest": "random forest, {trees} trees",
    "regression": "logistic regression",
    "map": "hyperscene, stride {stride}, {provider}",
    "other": "hyperscene, stride {stride}, {other_provider}",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene bench`."""
    plain = BenchOptions()
    parser.add_argument("what", nargs="?", choices=("map", "train"), default="map", help="(%(default)s)")
    add_bundle_option(parser)
    add_engine_options(parser)
    parser.add_argument("--rounds", type=int, default=plain.rounds, metavar="N", help="rounds (%(default)s)")
    parser.add_argument(
        "--patches", type=int, default=plain.patches, metavar="N", help="patches per map (default: %(default)s)"
    )
    parser.add_argument(
        "--loop-s",
        type=float,
        default=plain.loop_s,
        metavar="S",
        help="seconds per loop without a scene (default: %(default)s)",
    )
    parser.add_argument(
        "--side-px", type=int, default=600, metavar="N",
        help="side of the scene that a default map, a random forest and a regression map; 0: none (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--growth", action="store_true", help="map scenes of many sizes, too: half an hour more")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the synthetic scenes and the last map here")
    _add_training_options(parser.add_argument_group("of bench train"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements here")


def _add_training_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--works",
        default="small",
        metavar="NAMES",
        help="synthetic scenes: small, medium, large, huge, or '' (%(default)s)",
    )
    group.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each (%(default)s)")
    group.add_argument("--scene", type=Path, metavar="S", help="measure a training on this scene too")
    group.add_argument("--labels", type=Path, metavar="L", help="and these labels")
    group.add_argument("--class-field", metavar="F", help="the field or column that contains the class")
    group.add_argument("--fraction", type=float, help="share of the labels for training; the others test the map")


def run(options: argparse.Namespace) -> int:
    """Measure, print a table, and write the measurements to --json."""
    if options.what == "train":
        from hyperscene.service.commands import bench_training  # needs torch

        return bench_training.run(options)
    if options.side_px != 0 and options.side_px < 64:
        raise OptionsUnusable(f"--side-px must be 64 or more, or 0 for no such maps, not {options.side_px}")
    if options.rounds < 1 or options.patches < 1 or not 0 < options.loop_s < math.inf:
        raise OptionsUnusable("--rounds and --patches must be 1 or more, --loop-s above 0")
    if options.json is not None and not options.json.parent.is_dir():
        raise OutputUnwritable(f"there is no folder {options.json.parent} for --json: create it, or choose another")
    wanted = BenchOptions(
        options.device,
        options.threads,
        options.batch,
        options.rounds,
        options.patches,
        options.loop_s,
        options.precision,
    )
    bundle = read_chosen_bundle(options)
    with bench_folder(options.out) as folder, ProgressBar(0, "steps") as progress:
        document = measure(bundle, wanted, folder, progress.advance_of)
        document |= _beside_others(options, folder, progress)
    print(_table(document))
    if options.json is not None:
        try:
            options.json.write_text(json_text(document, indent=2) + "\n")
        except OSError as error:
            raise OutputUnwritable(f"{options.json} cannot be written ({error.strerror}): choose another") from error
    return DONE


def _beside_others(options: argparse.Namespace, folder: Path, progress: ProgressBar) -> dict[str, Any]:
    """The default map beside a forest and a regression, and how it grows; they need the packages for training."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return {}
    from hyperscene.training.anchors import measure_anchors, measure_growth

    found: dict[str, Any] = {}
    if options.side_px:
        choice = (options.device, options.precision)
        found["anchors"] = measure_anchors(
            folder, options.side_px, ANCHOR_BANDS, options.rounds, choice, progress.advance_of
        )
    if options.growth:
        found["growth"] = measure_growth(folder, options.device, progress.advance_of)
    return found


def _anchor_lines(anchors: dict[str, Any]) -> list[str]:
    rows, cols, bands = anchors["scene"]
    head = f"default map of a strong bundle, {rows} x {cols} x {bands}, file to GeoTIFF"
    lines = ["", f"{head:<72} {'seconds':>8} {'ours is':>8}"]
    for name, seconds in anchors["seconds"].items():
        if " " not in name:  # not a stage
            ratio = anchors["map_to"].get(name)
            label = LABELS[name].format(**anchors)
            lines.append(f"{label:<72} {seconds:>8.2f} {'' if ratio is None else f'{ratio:.2f} x':>8}".rstrip())
    stages = ", ".join(
        f"{name.removeprefix('map ')} {value:.2f}" for name, value in anchors["seconds"].items() if " " in name
    )
    return [*lines, f"seconds of the map's stages, which overlap: {stages}"]


def _growth_lines(growth: list[dict[str, Any]]) -> list[str]:
    lines = ["", f"{'pixels':>10} {'bands':>6} {'classes':>8} {'seconds':>8} {'pixels/s':>9} {'peak MB':>8}"]
    for row in growth:
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
        rate = row["pixels"] / row["seconds"]
        lines.append(
            f"{row['pixels']:>10} {row['bands']:>6} {row['classes']:>8} {row['seconds']:>8.1f} {rate:>9.0f} {peak:>8}"
        )
    return lines


def _table(document: dict[str, Any]) -> str:
    machine, ours = document["machine"], document["ours_to"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores",
        f"{document['provider']}, {document['threads']} threads, {document['batch']} patches per call",
        f"bundle {document['bundle']}, {document['bands']} bands; medians of {document['rounds']} interleaved rounds",
        f"matrix products: {document['gemm_gflops']:.0f} GFLOPS",
        "",
        f"{'exact map (stride 1)':<44} {'patches/s':>9} {'of GEMM':>8} {'ours is':>8}",
    ]
    for name, label in CANDIDATES.items():
        if (rate := document["patches_per_s"][name]) is not None:
            share, ratio = document["share_of_gemm"][name], ours.get(name)
            lines.append(
                f"{label:<44} {rate:>9.0f} {'' if share is None else f'{share:.2f}':>8} "
                f"{'' if ratio is None else f'{ratio:.2f} x':>8}".rstrip()
            )
    lines += ["", f"{'stride':<7} {'pixels/s':>9} {'outside network':>18}  seconds: {', '.join(STAGES)}"]
    for stride, measured in document["strides"].items():
        seconds = "  ".join(f"{measured['seconds'][stage]:.2f}" for stage in STAGES)
        lines.append(
            f"{stride:<7} {measured['pixels_per_s']:>9.0f} {100 * measured['round_the_network']:>16.1f} %  {seconds}"
        )
    if (peak := document["peak_memory_mb"]) is not None:
        lines += ["", f"peak memory of a process that maps at the largest stride: {peak:.0f} MB"]
    if document["first_strip_s"] is not None:
        lines.append(f"from the command to the first strip written: {document['first_strip_s']:.2f} s")
    if "anchors" in document:
        lines += _anchor_lines(document["anchors"])
    if "growth" in document:
        lines += _growth_lines(document["growth"])
    return "\n".join(lines)
