"""Look into a fitted network: its features, its attention, and its maps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperscene.errors import OutputUnwritable
from hyperscene.model.architecture import Transformer, centre_token, predicting_tokens
from hyperscene.model.attention import MultiHeadAttention
from hyperscene.model.bundle import Bundle
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.blend import BLENDS, Blend
from hyperscene.service.mapping.engines import Engine, make_engine
from hyperscene.service.mapping.options import STRIDES, MapOptions
from hyperscene.service.mapping.pictures import HIGH_PERCENT, LOW_PERCENT, choose_bands, stretched
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.service.mapping.strips import MappedStrip
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Pixels, Split
from hyperscene.training.evaluate import ArraySource
from hyperscene.training.fit.export import export_graph, write_bundle
from hyperscene.training.fit.network import Fitted
from hyperscene.training.fit.patches import PatchSource, gather_patches

FEATURE_PIXELS = 2000  # t-SNE of more takes minutes
ATTENTION_PIXELS = 6
CANDIDATES = 300  # test pixels of a class among which one is chosen
# Strides below this are timed on small scenes only: a patch for every pixel of a larger one takes many minutes.
SMALL_SCENE_PIXELS = 30_000
LARGEST_TIMED_STRIDE = 8


def features_of(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.float32]:
    """The classifier's input for the centre pixels (n, width): pooled tokens, or the centre's token."""
    config, found = network.config, []
    for patches in gather_patches(network, source, centers):
        spectra = patches.flatten(1, 2)
        context = None if network.context_stream is None else network.context_stream.spectral(spectra)
        tokens = network.features(network.stream.spectral(spectra), context)
        if config.head == "pooled":
            pooled = tokens.mean(dim=1)
        elif config.head == "token":
            pooled = tokens[:, centre_token(config.patch_px)]
        else:
            pooled = predicting_tokens(tokens, config)
        found.append(pooled.float().cpu().numpy())
    return np.concatenate(found)


def centre_attention(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.float32]:
    """Attention of the centre's token: (n, layers, heads, patch, patch), which sums to 1 over a patch."""
    side = network.config.patch_px
    scores: list[Tensor] = []
    hooks = [
        attention.score.register_forward_hook(lambda _, __, output: scores.append(output))
        for attention in network.modules()
        if isinstance(attention, MultiHeadAttention)
    ]
    found = []
    try:
        for patches in gather_patches(network, source, centers):
            scores.clear()
            network(patches)
            layers = [torch.softmax(layer[:, :, centre_token(side)].float(), dim=-1) for layer in scores]
            found.append(torch.stack(layers, dim=1).unflatten(-1, (side, side)).cpu().numpy())
    finally:
        for hook in hooks:
            hook.remove()
    return np.concatenate(found)


def softmax(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    """Probabilities of logits (n, classes) divided by a temperature."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class SceneMap:
    """A map as the service delivers it, with its cost."""

    options: MapOptions
    classes: NDArray[np.uint16]  # (rows, cols)
    confidence: NDArray[np.float32]  # (rows, cols)
    patches: int
    seconds: float


class Mapper:
    """Maps a scene in memory as the service does; the engine is started once."""

    def __init__(self, bundle: Bundle, scene: LabelledScene, device: str = "auto") -> None:
        self.bundle = bundle
        self._scene = scene
        self._engine: Engine = make_engine(bundle, "cpu" if device == "cpu" else "auto")

    def map(self, stride_px: int = 0, blend: Blend = "angle") -> SceneMap:
        """Map the scene; stride 0 is the service's default."""
        scene, manifest = self._scene, self.bundle.manifest
        rows, cols = scene.valid.shape
        options = MapOptions(stride_px, blend).settled(manifest, cols)
        began = time.perf_counter()
        plan = plan_scene(rows, cols, manifest, options, self._engine.batch)
        mapper = StripMapper(self._engine, manifest, plan, options.blend)
        strips = list(mapper.map_source(ArraySource(PixelRows(0, scene.cube, scene.valid)), plan.strips))
        probabilities = np.concatenate([strip.probabilities for strip in strips])
        whole = MappedStrip(0, probabilities, scene.valid)
        patches = sum(strip.patches for strip in strips)
        return SceneMap(options, whole.classes, whole.confidence, patches, time.perf_counter() - began)

    def ways(self) -> list[tuple[int, Blend]]:
        """The strides and blends to compare on this scene."""
        manifest = self.bundle.manifest
        widest = manifest.patch_px if manifest.head == "token" else manifest.patch_px // 2
        is_small = self._scene.valid.size <= SMALL_SCENE_PIXELS
        strides = [stride for stride in STRIDES if stride <= min(widest, LARGEST_TIMED_STRIDE)]
        ways = [(stride, blend) for stride in strides if stride > 1 or is_small for blend in BLENDS]
        # `none` needs a patch for each pixel; for the head `token`, `angle` equals `linear`.
        return [
            (stride, blend)
            for stride, blend in ways
            if (blend != "none" or stride == 1) and not (blend == "angle" and manifest.head == "token")
        ]


def make_bundle(fitted: Fitted, scene: LabelledScene, name: str) -> Bundle:
    """Export the network to a bundle, as the service loads it."""
    graph = export_graph(fitted, scene)
    try:
        with tempfile.TemporaryDirectory(prefix="hyperscene-study-") as folder:
            return write_bundle(graph, fitted, scene, name, {"study": name}, Path(folder) / "cell.onnx")
    except (OSError, OutputUnwritable) as error:
        raise OutputUnwritable(
            f"the folder of temporary files cannot be written ({error}): free its disk, or set TMPDIR to another folder"
        ) from error


def rgb_image(scene: LabelledScene) -> NDArray[np.uint8]:
    """The scene in three of its bands, (rows, cols, 3)."""
    wavelengths = None if scene.wavelengths_nm is None else scene.wavelengths_nm.tolist()
    cube = scene.cube[..., list(choose_bands(range(scene.cube.shape[-1]), wavelengths))]
    low, high = np.percentile(cube[scene.valid], [LOW_PERCENT, HIGH_PERCENT], axis=0)
    return stretched(cube, scene.valid, low, high)


def split_image(scene: LabelledScene, split: Split) -> NDArray[np.uint8]:
    """1 for training, 2 for validation and 3 for test pixels, (rows, cols)."""
    drawn = np.zeros(scene.labels.shape, np.uint8)
    for value, pixels in enumerate((split.train, split.validation, split.test), start=1):
        drawn[tuple(pixels.T)] = value
    return drawn


def choose_attention_pixels(scene: LabelledScene, test: Pixels, patch_px: int, seed: int) -> Pixels:
    """A test pixel of each of the most frequent classes, whose patch is about half its own class.

    Such patches show whether a pixel attends to its own class.
    """
    classes = scene.labels[tuple(test.T)]
    values, counts = np.unique(classes, return_counts=True)
    generator, chosen = np.random.default_rng(seed), []
    for value in values[np.argsort(-counts, kind="stable")][:ATTENTION_PIXELS]:
        candidates = generator.permutation(test[classes == value])[:CANDIDATES]
        mixture = [_own_share(scene.labels, pixel, patch_px) for pixel in candidates]
        chosen.append(candidates[int(np.abs(np.subtract(mixture, 0.5)).argmin())])
    return np.array(chosen)


def _own_share(labels: NDArray[np.uint16], pixel: NDArray[np.int64], patch_px: int) -> float:
    row, col = pixel
    half = patch_px // 2
    patch = labels[max(0, row - half) : row + half, max(0, col - half) : col + half]
    return float((patch == labels[row, col]).mean())


def embed_features(features: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """t-SNE of features, (n, 2)."""
    from sklearn.manifold import TSNE

    count = len(features)
    if count < 4:  # too few for t-SNE
        return np.zeros((count, 2), np.float32)
    perplexity = min(30.0, (count - 1) / 3)
    laid = TSNE(2, init="pca", perplexity=perplexity, random_state=seed).fit_transform(features)
    return laid.astype(np.float32)


def figure_arrays(
    network: Transformer, source: PatchSource, scene: LabelledScene, split: Split, seed: int
) -> dict[str, NDArray[Any]]:
    """The arrays that the report's figures of one network are drawn from, without its map."""
    generator = np.random.default_rng(seed)
    shown = split.test[np.sort(generator.permutation(len(split.test))[:FEATURE_PIXELS])]
    attended = choose_attention_pixels(scene, split.test, network.config.patch_px, seed)
    rgb = rgb_image(scene)
    indices = source.pixel_indices(torch.from_numpy(attended).to(source.pixels.device)).cpu().numpy()
    return {
        "truth": scene.labels,
        "split": split_image(scene, split),
        "rgb": rgb,
        "feature_classes": scene.labels[tuple(shown.T)],
        "embedding": embed_features(features_of(network, source, shown), seed),
        "attention_pixels": attended,
        "attention": centre_attention(network, source, attended),
        "attention_patches": rgb.reshape(-1, 3)[indices],
    }
