"""`hyperscene bench train`: how long training takes on this machine, with peak memory and accuracy."""

from __future__ import annotations

import argparse
from typing import Any

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.json_text import json_text
from hyperscene.progress import ProgressBar
from hyperscene.service.cli import DONE
from hyperscene.training.benchmark import WORKS, Files, bench_files, measure

STAGES = ("reading", "label propagation", "network", "export", "scoring")


def run(options: argparse.Namespace) -> int:
    """Measure, print a table, and write the measurements to --json."""
    known = [work.name for work in WORKS]
    works = [name.strip() for name in options.works.split(",") if name.strip()]
    if unknown := sorted(set(works) - set(known)):
        raise OptionsUnusable(f"--works has no {unknown[0]!r}: choose from {', '.join(known)}")
    if (options.scene is None) != (options.labels is None):
        raise OptionsUnusable("--scene and --labels go together: give both, or none")
    if options.seeds < 1:
        raise OptionsUnusable(f"--seeds must be 1 or more, not {options.seeds}")
    own = None
    if options.scene is not None:
        chosen = {"fraction": options.fraction, "class_field": options.class_field}
        given = {name: value for name, value in chosen.items() if value is not None}
        own = Files(options.scene.name, options.scene, options.labels, given)
    with bench_files(works, own, options.out) as (files, folder), ProgressBar(0, "trainings") as progress:
        document = measure(files, range(options.seeds), folder, progress.advance_of)
    print(table(document))
    if options.json is not None:
        try:
            options.json.write_text(json_text(document, indent=2) + "\n")
        except OSError as error:
            raise OutputUnwritable(f"{options.json} cannot be written ({error.strerror}): choose another") from error
    return DONE


def table(document: dict[str, Any]) -> str:
    """One line for each work: medians of seconds, of the processor too, the mean accuracy, and the largest memory."""
    seeds = len(document["seeds"])
    heads = [*STAGES, "other", "whole"]
    lines = [
        f"{document['cores']} cores; medians of {seeds} seed{'s' * (seeds > 1)}, in seconds",
        f"{'work':<16} {'labels':>6} " + " ".join(heads) + " processor  peak MB  OA",
    ]
    for name, found in document["works"].items():
        stages = [found["stages"].get(stage, 0.0) for stage in STAGES]
        seconds = [*stages, max(0.0, found["seconds"] - sum(stages)), found["seconds"]]
        cells = " ".join(f"{value:>{len(head)}.1f}" for head, value in zip(heads, seconds, strict=True))
        peak = "-" if found["peak_memory_mb"] is None else f"{found['peak_memory_mb']}"
        oa = "-" if found["oa"] is None else f"{100 * found['oa']:.1f} ({found['scored_by']})"
        lines.append(f"{name:<16} {found['labels']:>6} {cells} {found['processor_s']:>9.1f} {peak:>8}  {oa}")
    return "\n".join(lines)
