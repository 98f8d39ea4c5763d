"""Gradients of a batch by several threads, with the same result for any number of them.

A batch is divided into micro-batches of a fixed size. One thread computes each, and their gradients are added in order.
The operations of a step are too small to be divided among torch's own threads: on two busy cores of an AMD EPYC these
waited for each other, and a step took 19 times the processor time of one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperscene.model.architecture import Transformer, seeded_dropout

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Part:
    """A micro-batch: what computes its loss, and the seed of its dropout."""

    loss: Callable[[], Tensor]
    seed: int


class GradientPool:
    """The threads that compute gradients of a network's weights."""

    def __init__(self, network: Transformer, pool: ThreadPoolExecutor | None) -> None:
        self.weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._pool = pool

    def backward(self, parts: Sequence[Part]) -> float:
        """Set the gradients of the weights to those of the sum of the losses, and give the sum."""
        for weight in self.weights:
            weight.grad = None
        total = 0.0
        for loss, gradients in (self._pool.map if self._pool and len(parts) > 1 else map)(self._gradients, parts):
            total += loss
            for weight, gradient in zip(self.weights, gradients, strict=True):
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        return total

    def _gradients(self, part: Part) -> tuple[float, Gradients]:
        with seeded_dropout(part.seed):
            loss = part.loss()
        return float(loss.detach()), torch.autograd.grad(loss, self.weights, allow_unused=True)


@contextmanager
def gradient_pool(network: Transformer, device: torch.device) -> Iterator[GradientPool]:
    """On a CPU a thread per core, and torch with one thread in each; on a GPU the calling thread."""
    if device.type != "cpu":
        yield GradientPool(network, None)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Not more than OMP_NUM_THREADS or torch.set_num_threads() allow, which `threads` has.
        count = min(threads, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(count) as pool:
            yield GradientPool(network, pool if count > 1 else None)
    finally:
        torch.set_num_threads(threads)
