"""Checkpoints: the state of a training run after an epoch, from which a later run continues."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.model.architecture import ModelConfig, Transformer
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Split
from hyperscene.training.fit.compute import Compute
from hyperscene.training.fit.recipes import RENAMED_SETTINGS, Recipe


def fingerprint(
    scene: LabelledScene, split: Split, config: ModelConfig, recipe: Recipe, seed: int, compute: Compute
) -> dict[str, Any]:
    """Everything that determines a run's result, named by the options that set it."""
    pixels = hashlib.sha256(b"".join(part.tobytes() for part in (split.train, split.validation, split.test)))
    options = {**asdict(recipe), **asdict(config)}  # the configured head and path replace the recipe's
    options |= {"patch": options.pop("patch_px"), "recipe": options.pop("name")}
    return {
        "scene or labels": scene.digest,
        **options,
        "seed": seed,
        "split": pixels.hexdigest(),
        "precision": compute.precision,
    }


@dataclass(frozen=True)
class TrainingCheckpoint:
    """The file of one run."""

    path: Path
    fingerprint: dict[str, Any]

    def save(self, network: Transformer, optimiser: Optimizer, epochs_done: int) -> None:
        state = {
            "fingerprint": self.fingerprint,
            "epochs_done": epochs_done,
            "network": network.state_dict(),
            "optimiser": optimiser.state_dict(),
        }
        unfinished = self.path.with_name(self.path.name + ".part")
        try:
            torch.save(state, unfinished)
            unfinished.replace(self.path)
        except (OSError, RuntimeError) as error:  # torch raises the latter when the disk is full
            raise OutputUnwritable(
                f"the checkpoint {self.path} cannot be written: free disk space, or choose another -o"
            ) from error
        finally:
            with suppress(OSError):
                unfinished.unlink()

    def load(self, network: Transformer, optimiser: Optimizer) -> int:
        """Restore the network and the optimiser; gives the number of epochs done."""
        require_checkpoint(self.path)
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            made_with, epochs_done = state["fingerprint"], int(state["epochs_done"])
        except Exception as error:  # torch.load raises many types for damaged files
            raise OptionsUnusable(
                f"the checkpoint {self.path} is damaged: delete it and start without --resume"
            ) from error
        made_with = {RENAMED_SETTINGS.get(name, name): value for name, value in made_with.items()}
        other = [name for name, value in self.fingerprint.items() if made_with.get(name) != value]
        if other:
            raise OptionsUnusable(
                f"the checkpoint {self.path} was made with another {', '.join(other)}: repeat its options, or start "
                "without --resume"
            )
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        return epochs_done


def require_checkpoint(path: Path) -> None:
    """Refuse --resume without a checkpoint."""
    if not path.exists():
        raise OptionsUnusable(f"--resume found no checkpoint at {path}: start without --resume")
