"""The child process that runs training steps in each precision.

`python -m hyperscene.training.fit.precision_probe [SECONDS]`

It prints a JSON line after each step, so that the parent knows which precision crashed the process.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from hyperscene.model.probing import confine_probe

LEAST_ROUNDS, MOST_ROUNDS, ENOUGH_S = 3, 20, 1.5
MOST_S = 120


def main() -> None:
    """A step of the default network on a micro-batch of the default recipe, alternating between precisions."""
    confine_probe(int(sys.argv[1]) if len(sys.argv) > 1 else MOST_S)

    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from hyperscene.model.architecture import ModelConfig, Transformer
    from hyperscene.training.fit.compute import keep_freed_memory
    from hyperscene.training.fit.patches import CPU_TOKENS_AT_ONCE
    from hyperscene.training.fit.recipes import RECIPES

    keep_freed_memory()
    torch.set_num_threads(1)  # on a busy machine, waiting threads would distort the comparison
    torch.manual_seed(0)
    recipe = RECIPES["strong"]
    config = ModelConfig(bands=200, classes=16, head=recipe.head, spectral_path=recipe.spectral_path, dropout=0.0)
    network = Transformer(config)
    kept = torch.randperm(config.patch_px**2)[: round(recipe.token_share * config.patch_px**2)]
    spectra = torch.randn(CPU_TOKENS_AT_ONCE // len(kept), len(kept), config.bands)
    classes = torch.randint(0, config.classes, (spectra.shape[0] * len(kept),))

    def gradient(precision: str) -> tuple[Tensor, dict[str, Any]]:
        network.zero_grad()
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = network.logits(spectra, kept).float().flatten(0, -2)
        loss = F.cross_entropy(logits, classes)
        loss.backward()
        seconds = time.perf_counter() - began
        found = torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])
        return found, {"precision": precision, "seconds": seconds, "loss": float(loss.detach())}

    began, done = time.perf_counter(), 0
    while done < LEAST_ROUNDS or (done < MOST_ROUNDS and time.perf_counter() - began < ENOUGH_S):
        exact, line = gradient("float32")
        print(json.dumps(line | {"gradient_error": 0.0}), flush=True)
        found, line = gradient("bfloat16")
        print(json.dumps(line | {"gradient_error": float((found - exact).norm() / exact.norm())}), flush=True)
        done += 1


if __name__ == "__main__":
    main()
