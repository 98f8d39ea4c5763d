"""The demo bundle: small, valid, and better than a random forest on an unseen landscape."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, make_scene
from hyperscene.training.evaluate import classify_pixels


def test_the_demo_bundle_is_small_and_valid():
    bundle = load_bundle(DEMO_BUNDLE)
    assert DEMO_BUNDLE.stat().st_size < 1_500_000
    assert bundle.manifest.class_names == [material.name for material in MATERIALS]
    assert bundle.manifest.class_colors == [material.color for material in MATERIALS]
    assert bundle.manifest.training["split"]["name"] == "random"


@pytest.mark.slow
def test_the_demo_bundle_is_far_better_than_a_random_forest_on_an_unseen_landscape():
    bundle = load_bundle(DEMO_BUNDLE)
    cube, labels = make_scene(SyntheticScene(128, 128, 64, seed=77))
    valid = labels > 0
    filled = np.where(valid[..., None], cube, np.array(bundle.manifest.nodata_fill, np.float32))
    generator = np.random.default_rng(0)
    pixels = generator.permutation(np.argwhere(valid))
    trained, judged = pixels[:700], pixels[700:1300]
    # The forest is trained on this landscape, the bundle on another.
    forest = RandomForestClassifier(200, random_state=0).fit(cube[tuple(trained.T)], labels[tuple(trained.T)])
    truth = labels[tuple(judged.T)]
    by_forest = (forest.predict(cube[tuple(judged.T)]) == truth).mean()
    by_bundle = (classify_pixels(bundle.session, filled, judged, 16) == truth).mean()
    assert by_bundle > by_forest + 0.1
    assert by_bundle > 0.85
