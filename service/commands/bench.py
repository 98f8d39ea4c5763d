"""`hyperscene bench`: the machine's speed as ratios that hold on a noisy machine."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from service.bench import STAGES, BenchOptions, bench_folder, measure
from service.cli import DONE
from service.commands.options import add_bundle_option, add_engine_options, chosen_bundle
from service.errors import OptionsUnusable, OutputUnwritable
from service.progress import Progress

CONTESTANTS = {
    "eager": "torch eager, batch 128",
    "plain": "ONNX Runtime, host-made patches, batch 64",
    "onnxruntime": "hyperscene on ONNX Runtime, whole run",
    "network": "engine alone, no scene",
    "ours": "hyperscene, whole run",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene bench`."""
    plain = BenchOptions()
    add_bundle_option(parser)
    add_engine_options(parser)
    parser.add_argument("--rounds", type=int, default=plain.rounds, metavar="N", help="rounds (%(default)s)")
    parser.add_argument("--patches", type=int, default=plain.patches, metavar="N", help="of each map (%(default)s)")
    parser.add_argument(
        "--loop-s", type=float, default=plain.loop_s, metavar="S", help="of each loop without a scene (%(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the made scenes and the last map here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write the figures where asked."""
    if options.rounds < 1 or options.patches < 1 or not 0 < options.loop_s < math.inf:
        raise OptionsUnusable("--rounds and --patches are counts, give 1 or more; --loop-s is a time above 0")
    if options.json is not None and not options.json.parent.is_dir():
        raise OutputUnwritable(f"there is no folder {options.json.parent} for the figures: make it, or choose another")
    asked = BenchOptions(
        options.device, options.threads, options.batch, options.rounds, options.patches, options.loop_s
    )
    bundle = chosen_bundle(options)
    with bench_folder(options.out) as folder, Progress(0, "steps") as progress:
        document = measure(bundle, asked, folder, progress.advance_of)
    print(_table(document))
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(document, indent=2) + "\n")
        except OSError as error:
            raise OutputUnwritable(f"{options.json} cannot be written ({error.strerror}): choose another") from error
    return DONE


def _table(document: dict[str, Any]) -> str:
    machine, ours = document["machine"], document["ours_to"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores",
        f"{document['provider']}, {document['threads']} threads, {document['batch']} patches a call",
        f"bundle {document['bundle']}, {document['bands']} bands; medians of {document['rounds']} interleaved rounds",
        f"matrix products: {document['gemm_gflops']:.0f} GFLOPS",
        "",
        f"{'exact map (stride 1)':<44} {'patches/s':>9} {'of GEMM':>8} {'ours is':>8}",
    ]
    for name, label in CONTESTANTS.items():
        if (rate := document["patches_per_s"][name]) is not None:
            share, ratio = document["share_of_gemm"][name], ours.get(name)
            lines.append(
                f"{label:<44} {rate:>9.0f} {'' if share is None else f'{share:.2f}':>8} "
                f"{'' if ratio is None else f'{ratio:.2f} x':>8}".rstrip()
            )
    lines += ["", f"{'stride':<7} {'pixels/s':>9} {'round the network':>18}  seconds: {', '.join(STAGES)}"]
    for stride, figures in document["strides"].items():
        seconds = "  ".join(f"{figures['seconds'][stage]:.2f}" for stage in STAGES)
        lines.append(
            f"{stride:<7} {figures['pixels_per_s']:>9.0f} {100 * figures['round_the_network']:>16.1f} %  {seconds}"
        )
    if (peak := document["peak_memory_mb"]) is not None:
        lines += ["", f"peak memory of a process that maps at the largest stride: {peak:.0f} MB"]
    return "\n".join(lines)
