"""The anchors of `hyperscene bench` are real maps, and growth is measured in processes of their own."""

import numpy as np
import pytest
import rasterio

from hyperscene.training import anchors
from hyperscene.training.data.synthetic import SyntheticScene, make_scene

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fit", [anchors.fit_forest, anchors.fit_regression])
def test_an_anchor_maps_far_above_chance_and_keeps_gaps(tmp_path, fit):
    scene = anchors.write_anchor_scene(tmp_path, 96, 24)
    assert anchors.map_with(fit(scene), scene.path, tmp_path) > 0
    _, truth = make_scene(SyntheticScene(96, 96, 24, seed=5))
    with rasterio.open(tmp_path / "classes.tif") as file:
        classes = file.read(1)
    with rasterio.open(tmp_path / "probabilities.tif") as file:
        shares = file.read()
    np.testing.assert_array_equal(classes == 0, truth == 0)
    assert (shares[:, truth == 0] == anchors.NODATA).all()
    assert np.abs(shares[:, truth > 0].astype(int).sum(axis=0) - 254).max() <= len(shares)
    assert (classes == truth)[truth > 0].mean() > 0.4  # 0.52 for the forest; chance is 0.13


def test_growth_has_seconds_and_memory_of_each_size(tmp_path, monkeypatch):
    monkeypatch.setattr(anchors, "GROWTH", ((64, 6, 3),))
    (row,) = anchors.measure_growth(tmp_path, "auto", lambda done, total: None)
    assert (row["pixels"], row["bands"], row["classes"]) == (4096, 6, 3)
    assert row["seconds"] > 0
    assert row["peak_mb"] > 50
