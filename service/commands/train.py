"""`hyperscene train`: a scene and a few labels in, a bundle out."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path

from hyperscene.model.architecture import HEADS, POSITIONS
from hyperscene.model.attention import NORMALISE, SQUARING, VARIANTS
from hyperscene.progress import ProgressBar
from hyperscene.service.cli import DONE, INTERRUPTED
from hyperscene.service.commands.data import add_data_options, labelled_files
from hyperscene.training.data.splits import SPLITS
from hyperscene.training.fit.failures import explained
from hyperscene.training.fit.network import EpochReport
from hyperscene.training.fit.precision_health import CHOICES
from hyperscene.training.fit.recipes import RECIPES
from hyperscene.training.train import PROTOCOLS, TrainOptions, train


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene train`."""
    defaults = {field.name: field.default for field in fields(TrainOptions) if field.default is not MISSING}
    parser.set_defaults(**defaults)
    data = parser.add_argument_group("data")
    add_data_options(data)
    data.add_argument("-o", "--output", type=Path, required=True, metavar="B", help="the .onnx file to write")
    data.add_argument("--name", help="the bundle's name (the file's name)")
    data.add_argument("--description", metavar="TEXT", help="what the bundle's users should know, for inspect and page")
    _add_split_options(parser.add_argument_group("split"))
    _add_fit_options(parser.add_argument_group("fit"))
    _add_network_options(parser.add_argument_group("network"))


def _add_split_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        help="labels: learn from all of them; paper: from 1 %%, test on 98 %% (%(default)s)",
    )
    group.add_argument(
        "--split", choices=SPLITS, help="spatial: training and test patches do not overlap (none, or random)"
    )
    group.add_argument("--fraction", type=float, help="share of each class for training; the others test the map")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("--train-pixels", type=int, metavar="N", help="training pixels in total, not by --fraction")
    amount.add_argument("--per-class", type=int, metavar="N", help="training pixels per class, at most half of it")
    group.add_argument("--val-fraction", type=float, help="share of each class for validation (0.01)")
    group.add_argument("--test-pixels", type=int, metavar="N", help="score at most N random test pixels (all)")


def _add_fit_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--recipe", choices=RECIPES, help="(%(default)s)")
    group.add_argument("--epochs", type=int, metavar="N", help="(from the recipe)")
    group.add_argument("--batch", type=int, metavar="N", help="patches per training step (from the recipe)")
    group.add_argument("--seed", type=int, help="(%(default)s)")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), help="(%(default)s)")
    group.add_argument("--precision", choices=CHOICES, help="auto: the fastest that works here (%(default)s)")
    group.add_argument("--baselines", action="store_true", help="score SVM, LDA and other classifiers too")
    group.add_argument("--resume", action="store_true", help="continue from the checkpoint beside the output")


def _add_network_options(group: argparse._ArgumentGroup) -> None:
    """The ablations of the paper, and what a recipe chooses."""
    group.add_argument("--attention", choices=VARIANTS, metavar="NAME", help=f"{', '.join(VARIANTS)} (%(default)s)")
    group.add_argument("--head", choices=HEADS, help="token: predict every pixel of a patch (from the recipe)")
    group.add_argument(
        "--spectral-path",
        action=argparse.BooleanOptionalAction,
        help="add a logistic regression of single spectra (from the recipe)",
    )
    group.add_argument("--normalise", choices=NORMALISE, help="of query and key, to length 1 (%(default)s)")
    group.add_argument("--squaring", choices=SQUARING, help="function of the cosine (from the attention)")
    group.add_argument("--positions", choices=POSITIONS, help="(%(default)s)")
    group.add_argument("--patch", type=int, metavar="PX", help="(%(default)s)")
    for option in ("--width", "--depth", "--heads", "--mlp-width"):
        group.add_argument(option, type=int, metavar="N", help="(%(default)s)")
    group.add_argument("--dropout", type=float, metavar="P", help="(from the recipe)")


def run(options: argparse.Namespace) -> int:
    """Train, and print the table of scores."""
    given = {field.name: getattr(options, field.name) for field in fields(TrainOptions) if field.name != "files"}
    training = TrainOptions(files=labelled_files(options), **given)
    epochs = training.epochs or RECIPES[training.recipe].epochs
    validated, began = "", time.time()
    with ProgressBar(epochs, "training") as progress:

        def show(epoch: EpochReport) -> None:
            nonlocal validated
            if epoch.validation_oa is not None:
                validated = f" validation OA {100 * epoch.validation_oa:.1f}"
            progress.advance_to(epoch.epoch, f"loss {epoch.loss:.3f}{validated}")

        try:
            with explained("training", training.output.with_name(training.output.name + ".log")):
                trained = train(training, show, progress.print_line)
        except KeyboardInterrupt:
            if training.resume or _is_newer(training.checkpoint, began):
                progress.print_line("stopped; repeat the command with --resume to continue")
            else:
                progress.print_line("stopped during the first epoch; nothing was written")
            return INTERRUPTED
    print("\n".join(trained.report()))
    size_mb = training.output.stat().st_size / 1e6
    stages = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in trained.seconds.items() if seconds >= 0.5)
    print(f"{training.output}: {size_mb:.2f} MB, self-check passed; {time.time() - began:.0f} s ({stages})")
    sys.stdout.flush()
    return DONE


def _is_newer(file: Path, began: float) -> bool:
    """Whether a file was written since `began`; a checkpoint may be of an earlier run."""
    return file.exists() and file.stat().st_mtime >= began
