"""The page trains a model: label file, classes and counts, progress, report, and a map with the new model."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.bundles import write_bundle
from tests.end_to_end.test_accessibility import findings
from tests.label_files import write_geojson
from tests.scenes import quadrants, spectra_of, write_tif
from tests.server import running_server

pytestmark = pytest.mark.slow

TRAINED_MS = 200_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("training-page")
    write_tif(made / "scene.tif", spectra_of(quadrants(34, 32), 6), wavelengths_nm=np.linspace(450, 900, 6))
    write_geojson(made / "fields.geojson")
    (made / "notes.txt").write_text("no labels")
    (made / "bundles").mkdir()
    write_bundle(made / "bundles" / "crops.onnx")
    return made


@pytest.fixture(scope="module")
def trainer(folder):
    options = ("--bundles", folder / "bundles", "--device", "cpu", "--train-workers", 1)
    with running_server(folder / "data", *options) as server:
        yield server


def test_a_model_is_trained_on_a_scene_and_maps_it_in_one_click(open_page, trainer, folder):
    page = open_page(color_scheme="light")
    page.goto(trainer.url)
    page.set_input_files("#files", folder / "scene.tif")
    page.get_by_role("button", name="Train a model on it").click()
    page.wait_for_url(re.compile(r"#/scenes/[0-9a-f]{32}/train$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Train a model")
    start = page.get_by_role("button", name="Train", exact=True)
    page.set_input_files("#labels", folder / "notes.txt")
    expect(page.get_by_role("alert")).to_contain_text("notes.txt is no label file")
    expect(start).to_be_disabled()

    page.set_input_files("#labels", folder / "fields.geojson")
    expect(page.get_by_role("heading", name="4 classes, 131 labelled pixels")).to_be_visible()
    expect(page.get_by_label("Field with the classes")).to_have_value("crop")
    assert page.locator(".label-classes tbody tr").all_inner_texts()[0].split() == ["road", "31", "2"]
    page.get_by_label("Field with the classes").select_option("id")
    expect(page.get_by_role("alert")).to_contain_text("fields.geojson has class numbers outside 1 to 65535")
    expect(page.get_by_role("heading", name="4 classes")).to_have_count(0)
    page.get_by_label("Field with the classes").select_option("crop")
    expect(page.get_by_role("heading", name="4 classes")).to_be_visible()
    expect(page.get_by_label("Name of the model")).to_have_value("fields")
    assert findings(page) == []
    page.get_by_label("Epochs").fill("2")
    start.click()

    page.wait_for_url(re.compile(r"#/jobs/[0-9a-f]{32}$"))
    expect(page.locator("#progress-text")).to_contain_text("%")
    expect(page.get_by_role("heading", name="Version 1 of fields is ready")).to_be_visible(timeout=TRAINED_MS)
    for name in ("Accuracy by cross-validation", "Confusion", "The network's map beside that of label propagation"):
        expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.locator(".result-map img")).to_have_count(2)
    report_url = page.url
    for scheme in ("light", "dark"):
        for width in (1280, 380):
            shown = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            shown.goto(report_url)
            expect(shown.get_by_role("heading", name="Settings and time")).to_be_visible()
            expect(shown.locator(".result-map img").last).to_have_js_property("complete", True)
            assert findings(shown) == []

    page.get_by_role("button", name="Map scene.tif with it").click()
    expect(page.get_by_role("heading", name="Classes")).to_be_visible()
    assert {"wheat", "soil", "water", "road"} >= {
        text.split()[0] for text in page.locator(".legend tbody th").all_inner_texts()
    }
    page.goto(trainer.url)
    expect(page.locator(".jobs .status").first).to_have_text("mapped")
    expect(page.get_by_text("trained", exact=True)).to_be_visible()
    dark = open_page(color_scheme="dark", viewport={"width": 380, "height": 800})
    dark.goto(f"{trainer.url}/#/scenes/{trainer.client.get('/jobs').json()['jobs'][0]['scene_id']}/train")
    dark.set_input_files("#labels", folder / "fields.geojson")
    expect(dark.get_by_role("heading", name="4 classes")).to_be_visible()
    assert findings(dark) == []
