"""`hyperscene train`: a scene and a few labels in, a bundle out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import MISSING, fields
from pathlib import Path

from model.architecture import HEADS, POSITIONS
from model.attention import NORMALISE, SQUARING, VARIANTS
from service.cli import DONE, INTERRUPTED
from service.commands.data import add_data_options, labelled_files
from service.progress import Progress
from training.evaluate import score_line, score_table
from training.fit import EpochReport
from training.recipes import RECIPES
from training.splits import SPLITS
from training.train import TrainOptions, train


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene train`; those of the network are the paper's ablations."""
    defaults = {field.name: field.default for field in fields(TrainOptions) if field.default is not MISSING}
    parser.set_defaults(**defaults)

    data = parser.add_argument_group("data")
    add_data_options(data)
    data.add_argument(
        "-o", "--output", type=Path, required=True, metavar="B", help="the bundle to write, an .onnx file"
    )
    data.add_argument("--name", help="the bundle's name (its file's name)")

    learning = parser.add_argument_group("learning")
    learning.add_argument("--recipe", choices=RECIPES, help="(%(default)s)")
    learning.add_argument("--epochs", type=int, metavar="N", help="(the recipe's)")
    learning.add_argument("--batch", type=int, metavar="N", help="(the recipe's)")
    learning.add_argument("--fraction", type=float, help="share of each class to train on (%(default)s)")
    amount = learning.add_mutually_exclusive_group()
    amount.add_argument("--train-pixels", type=int, metavar="N", help="train on so many pixels in all instead")
    amount.add_argument(
        "--per-class", type=int, metavar="N", help="train on so many pixels of every class instead, at most half of it"
    )
    learning.add_argument("--val-fraction", type=float, help="share of each class to validate on (%(default)s)")
    learning.add_argument("--test-pixels", type=int, metavar="N", help="score at most N, drawn at random (all)")
    learning.add_argument("--split", choices=SPLITS, help="spatial: test a patch away from any label (%(default)s)")
    learning.add_argument("--seed", type=int, help="(%(default)s)")
    learning.add_argument("--device", choices=("auto", "cpu", "cuda"), help="(%(default)s)")
    learning.add_argument(
        "--baselines", action="store_true", help="score a random forest, an SVM and a logistic regression too"
    )
    learning.add_argument("--resume", action="store_true", help="go on from the checkpoint beside the output")

    network = parser.add_argument_group("network")
    network.add_argument("--attention", choices=VARIANTS, metavar="NAME", help=f"{', '.join(VARIANTS)} (%(default)s)")
    network.add_argument("--head", choices=HEADS, help="which tokens answer (the recipe's)")
    network.add_argument(
        "--spectral-path",
        action=argparse.BooleanOptionalAction,
        help="start from a logistic regression per pixel (the recipe's)",
    )
    network.add_argument("--normalise", choices=NORMALISE, help="which of query and key have length 1 (%(default)s)")
    network.add_argument("--squaring", choices=SQUARING, help="what becomes of the cosine (the attention's own)")
    network.add_argument("--positions", choices=POSITIONS, help="(%(default)s)")
    network.add_argument("--patch", type=int, metavar="PX", help="(%(default)s)")
    network.add_argument("--width", type=int, metavar="N", help="(%(default)s)")
    network.add_argument("--depth", type=int, metavar="N", help="(%(default)s)")
    network.add_argument("--heads", type=int, metavar="N", help="(%(default)s)")
    network.add_argument("--mlp-width", type=int, metavar="N", help="(%(default)s)")
    network.add_argument("--dropout", type=float, metavar="P", help="(the recipe's)")


def run(options: argparse.Namespace) -> int:
    """Train, and end with the table of scores."""
    given = {field.name: getattr(options, field.name) for field in fields(TrainOptions) if field.name != "files"}
    asked = TrainOptions(files=labelled_files(options), **given)
    epochs = asked.epochs or RECIPES[asked.recipe].epochs
    finished, validated = 0, ""
    with Progress(epochs, "training") as progress:

        def show(epoch: EpochReport) -> None:
            nonlocal finished, validated
            finished = epoch.epoch
            if epoch.validation_oa is not None:
                validated = f" validation OA {100 * epoch.validation_oa:.1f}"
            progress.advance_to(epoch.epoch, f"loss {epoch.loss:.3f}{validated}")

        try:
            trained = train(asked, show, progress.say)
        except KeyboardInterrupt:
            if finished:
                progress.say(f"stopped after epoch {finished} of {epochs}; the same command with --resume goes on")
            elif asked.resume:
                progress.say("stopped; the same command goes on from the same checkpoint")
            else:
                progress.say("stopped before the first epoch was done; nothing was written")
            return INTERRUPTED
    print(score_table(trained.scores))
    for name, scores in trained.baselines.items():
        print(f"{name} on the same pixels: {score_line(scores)}")
    print(f"{asked.output}: {asked.output.stat().st_size / 1e6:.2f} MB, self-check passed")
    sys.stdout.flush()
    return DONE
