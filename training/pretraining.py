"""Learning a scene before its labels: spectra of some pixels are hidden, and the network guesses them from the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.architecture import Transformer
from training.patches import PatchSource, draw_batches, is_fast_in_bfloat16, looked_at, micro_batch, patches_in_epoch
from training.recipes import Recipe, learning_rate

HIDDEN_SHARE = 0.5  # of the tokens that a step looks at


class Guesser(nn.Module):
    """A network whose tokens are partly hidden behind one of its own, and a layer that guesses their spectra."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network
        self.hidden = nn.Parameter(torch.zeros(network.config.width))
        self.spectra = nn.Linear(network.config.width, network.config.bands)

    def forward(self, spectra: Tensor, is_hidden: Tensor, kept: Tensor | None) -> Tensor:
        """Guesses (h, bands) of the spectra (n, tokens, bands) that `is_hidden` (n, tokens) picks."""
        network, curtain = self.network, is_hidden.unsqueeze(-1)
        seen = torch.where(curtain, self.hidden, network.stream.spectral(spectra))
        context = None
        if network.context_stream is not None:
            context = torch.where(curtain, self.hidden, network.context_stream.spectral(spectra))
        guesses: Tensor = self.spectra(network.features(seen, context, kept)[is_hidden])
        return guesses


def pretrain(network: Transformer, source: PatchSource, centers: Tensor, recipe: Recipe, seed: int) -> float:
    """Let the network learn what the scene's spectra are like; gives how far it is off at last (1: as the mean is).

    `recipe` says for how many epochs, in which batches and with how much of a patch.
    """
    config, device = network.config, source.pixels.device
    torch.manual_seed(seed)
    guesser = Guesser(network).to(device).train()
    optimiser = torch.optim.AdamW(guesser.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    patches = patches_in_epoch(recipe, centers)
    steps = recipe.epochs * -(-patches // recipe.batch)
    generator = torch.Generator(device).manual_seed(seed)
    batches = (
        batch for _ in range(recipe.epochs) for batch in draw_batches(source, centers, config, recipe, device, patches)
    )
    off = 1.0
    for number, batch in enumerate(batches):
        places, kept = looked_at(batch, config, recipe, generator)
        is_hidden = torch.rand(places.shape, generator=generator, device=device) < HIDDEN_SHARE
        at_once, guessed = micro_batch(places), max(1, int(is_hidden.sum())) * config.bands
        optimiser.zero_grad()
        off = 0.0
        for some, hidden in zip(places.split(at_once), is_hidden.split(at_once), strict=True):
            spectra = source.pixels[some]
            with torch.autocast(device.type, torch.bfloat16, enabled=is_fast_in_bfloat16(device)):
                guesses = guesser(spectra, hidden, kept)
            loss = F.mse_loss(guesses.float(), spectra[hidden], reduction="sum") / guessed
            loss.backward()
            off += float(loss.detach())
        nn.utils.clip_grad_norm_(guesser.parameters(), recipe.clip_norm)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, number, steps)
        optimiser.step()
    optimiser.zero_grad()
    return off
