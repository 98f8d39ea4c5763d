"""Examples for the OpenAPI document: one for each document of the API, from a server with the demo bundle."""

from __future__ import annotations

from typing import Any

BASE = "http://localhost:8000"
ID = "0123456789abcdef0123456789abcdef"
OTHER_ID = "fedcba9876543210fedcba9876543210"
JSON = "application/json"
RELATIONS = "http://www.opengis.net/def/rel/ogc/1.0/"
PROCESS = f"{BASE}/processes/classify-scene"

Example = dict[str, Any]


def link(path: str, rel: str, kind: str = JSON, **more: str) -> Example:
    """A link of a document."""
    return {"href": BASE + path, "rel": rel, "type": kind, **more}


LANDING_PAGE: Example = {
    "title": "hyperscene",
    "description": "Maps whole hyperspectral scenes: send a GeoTIFF, ENVI or product, get a georeferenced class map.",
    "links": [
        link("/", "self", title="this document"),
        link("/api", "service-desc", "application/vnd.oai.openapi+json;version=3.0", title="the API"),
        link("/conformance", f"{RELATIONS}conformance", title="conformance"),
        link("/processes", f"{RELATIONS}processes", title="the processes"),
        link("/jobs", f"{RELATIONS}job-list", title="your jobs"),
    ],
}
CONFORMANCE: Example = {
    "conformsTo": [
        "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/core",
        "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/job-list",
    ]
}
OPENAPI: Example = {"openapi": "3.0.3", "info": {"title": "hyperscene", "version": "0.1.0"}, "paths": {}}

PROCESS_SUMMARY: Example = {
    "id": "classify-scene",
    "version": "0.1.0",
    "title": "Map a hyperspectral scene",
    "description": "Classifies every pixel of a scene.",
    "keywords": ["hyperspectral", "classification", "land cover"],
    "jobControlOptions": ["sync-execute", "async-execute", "dismiss"],
    "outputTransmission": ["value", "reference"],
    "links": [
        link("/processes/classify-scene", "self", title="the description"),
        {"href": f"{PROCESS}/execution", "rel": f"{RELATIONS}execute", "title": "run it (POST)"},
    ],
}
PROCESS_DESCRIPTION: Example = PROCESS_SUMMARY | {
    "inputs": {
        "scene": {
            "title": "The scene",
            "minOccurs": 1,
            "maxOccurs": 1,
            "schema": {"type": "string", "contentMediaType": "image/tiff", "contentEncoding": "binary"},
        },
        "stride_px": {"minOccurs": 0, "maxOccurs": 1, "schema": {"type": "integer", "enum": [1, 2, 4, 8, 16]}},
    },
    "outputs": {
        "classes": {
            "title": "Class map",
            "schema": {"type": "string", "contentMediaType": "image/tiff", "contentEncoding": "binary"},
        }
    },
}
PROCESS_LIST: Example = {"processes": [PROCESS_SUMMARY], "links": [link("/processes", "self")]}

JOB_EVENT: Example = {
    "time": "2026-01-31T12:00:04.750000Z",
    "text": "worker node-3 was lost with rows 320 to 351 in flight, sent again",
}
STATUS_INFO: Example = {
    "jobID": ID,
    "processID": "classify-scene",
    "type": "process",
    "status": "running",
    "message": "40 % mapped, about 12 s left",
    "created": "2026-01-31T12:00:00.250000Z",
    "updated": "2026-01-31T12:00:08.500000Z",
    "started": "2026-01-31T12:00:00.500000Z",
    "progress": 40,
    "patches_done": 4000,
    "patches_total": 10000,
    "estimated_s": 20.5,
    "seconds_left": 12.0,
    "scene": "scene.tif",
    "scene_id": OTHER_ID,
    "model": "demo",
    "settings": {"stride_px": 4, "blend": "angle", "probability_type": "uint8", "strip_px": 128},
    "device": "cpu",
    "provider": "ONNX Runtime 1.20.0 CPUExecutionProvider",
    "resumes": 0,
    "history": [JOB_EVENT],
    "links": [
        link(f"/jobs/{ID}", "self", title="this job"),
        link(f"/jobs/{ID}/events", "monitor", "text/event-stream", title="progress as it happens"),
    ],
}
JOB_LIST: Example = {
    "jobs": [STATUS_INFO],
    "links": [link("/jobs?limit=1&offset=0", "self"), link("/jobs?limit=1&offset=1", "next")],
}
RESULTS: Example = {
    "classes": link(f"/jobs/{ID}/results/classes.tif", "result", "image/tiff", title="Class map"),
    "summary": link(f"/jobs/{ID}/results/summary.json", "result", title="Pixels, areas, settings and warnings"),
}
EVENT = 'id: 7\nevent: status\ndata: {"status": "running", "progress": 40}\n\n'

SCENE: Example = {
    "id": ID,
    "name": "scene.tif",
    "size_bytes": 27839,
    "created": "2026-01-31T12:00:00.250000Z",
    "expires": "2026-02-07T12:00:00.250000Z",
    "format": "GeoTIFF",
    "rows": 40,
    "cols": 33,
    "type": "float32",
    "bands": 5,
    "bad_bands": 0,
    "band_numbers": [1, 2, 3, 4, 5],
    "wavelengths_nm": [450.0, 562.5, 675.0, 787.5, 900.0],
    "no_data": [],
    "crs": "EPSG:32633",
    "transform": [30.0, 0.0, 380000.0, 0.0, -30.0, 5820000.0],
    "pixel_size": [30.0, 30.0],
    "ground_control_points": 0,
    "is_georeferenced": True,
    "warnings": [],
    "models": {"demo": "the same bands"},
    "links": [
        link(f"/scenes/{ID}", "self", title="this scene"),
        {"href": f"{PROCESS}/execution", "rel": f"{RELATIONS}execute", "title": "map it (POST)"},
    ],
}

CLASSES = [{"value": 1, "name": "water", "color": "#1f78b4"}, {"value": 2, "name": "meadow", "color": "#33a02c"}]
TILES = f"{BASE}/jobs/{ID}/tiles"
RAMP = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]


def layer(name: str, title: str, **facts: Any) -> Example:
    """A layer of the TileJSON document."""
    url = f"{TILES}/{name}/{{z}}/{{x}}/{{y}}"
    return {"id": name, "title": title, "tiles": [f"{url}.png"], "tiles_2x": [f"{url}@2x.png"], **facts}


TILEJSON: Example = {
    "tilejson": "3.0.0",
    "name": "scene.tif: Class map",
    "scheme": "xyz",
    "tiles": [f"{TILES}/classes/{{z}}/{{x}}/{{y}}.png"],
    "minzoom": 11,
    "maxzoom": 12,
    "bounds": [13.231, 52.519, 13.2456, 52.5301],
    "center": [13.2383, 52.5245, 11],
    "crs": "EPSG:3857",
    "rows": 40,
    "cols": 33,
    "tile_px": 256,
    "scene_crs": "EPSG:32633",
    "transform": [30.0, 0.0, 380000.0, 0.0, -30.0, 5820000.0],
    "pixel_m": 30.007,
    "north_deg": 0.0,
    "pixel_table": {
        "west": 13.231,
        "east": 13.2456,
        "north": 52.5301,
        "south": 52.519,
        "cols": [[-0.2, 16.4, 33.0], [-0.1, 16.5, 33.1], [0.0, 16.6, 33.2]],
        "rows": [[-0.1, -0.6, -1.1], [20.5, 20.0, 19.5], [41.1, 40.6, 40.1]],
    },
    "layers": [
        layer("classes", "Class map", legend=CLASSES),
        layer("confidence", "Confidence", ramp=RAMP),
        layer("probability-1", "Probability of water", ramp=RAMP, value=1),
        layer("scene", "Scene", bands=[3, 2, 1], wavelengths_nm=[675.0, 562.5, 450.0]),
    ],
}
PIXEL: Example = {
    "row": 20,
    "col": 7,
    "lon": 13.23475,
    "lat": 52.52461,
    "is_valid": True,
    "class": CLASSES[0],
    "confidence": 0.937008,
    "probabilities": [CLASSES[0] | {"probability": 0.937008}, CLASSES[1] | {"probability": 0.062992}],
    "spectrum": {
        "bands": [1, 2, 3, 4, 5],
        "wavelengths_nm": [450.0, 562.5, 675.0, 787.5, 900.0],
        "values": [0.05, 0.06, 0.04, 0.02, None],
        "used": [True, True, True, True, True],
    },
}
MODEL_LIST: Example = {
    "models": [
        {
            "name": "demo",
            "title": "demo",
            "version": 1,
            "is_yours": False,
            "classes": CLASSES,
            "bands": 5,
            "wavelengths_nm": [450.0, 900.0],
            "patch_px": 16,
            "head": "pooled",
            "sha256": 2 * OTHER_ID,
            "links": [link("/models/demo", "self", "application/geo+json")],
        }
    ],
    "default": "demo",
    "links": [link("/models", "self", title="this list")],
}
MODEL: Example = {
    "type": "Feature",
    "stac_version": "1.1.0",
    "stac_extensions": ["https://stac-extensions.github.io/mlm/v1.4.0/schema.json"],
    "id": "demo",
    "geometry": None,
    "properties": {"datetime": "2026-01-31T12:00:00Z", "title": "demo", "version": "1", "mlm:framework": "ONNX"},
    "links": [link("/models/demo", "self", "application/geo+json")],
    "assets": {
        "bundle": {
            "href": f"{BASE}/models/demo/bundle.onnx",
            "type": "application/octet-stream; application=onnx",
            "roles": ["mlm:model", "mlm:weights", "data"],
        }
    },
}

LABEL_FILE: Example = {
    "name": "fields.gpkg",
    "format": "GeoPackage",
    "crs": "EPSG:32633",
    "shapes": 18,
    "fields": [{"name": "crop", "values": 2, "examples": ["meadow", "water"]}],
    "class_field": "crop",
    "classes": [CLASSES[1] | {"pixels": 82, "shapes": 9}, CLASSES[0] | {"pixels": 80, "shapes": 9}],
    "pixels": 162,
    "warnings": [],
}
ACCURACY = {"value": 0.91, "interval": [0.84, 0.96]}
TRAINING_REPORT: Example = {
    "model": "reed",
    "version": 1,
    "job": ID,
    "scene": "scene.tif",
    "labels": "fields.gpkg",
    "classes": [CLASSES[0] | {"pixels": 80, "clusters": 9}, CLASSES[1] | {"pixels": 82, "clusters": 9}],
    "settings": {"recipe": "strong", "seed": 0},
    "seconds": {"reading": 0.4, "label propagation": 3.1, "network": 20.2, "export": 2.5},
    "cross_validation": {
        "method": "spatial cross-validation of label propagation inside the labels",
        "far_from_labels": {"pixels": 162, "clusters": 18, "oa": ACCURACY, "confusion": [[75, 5], [9, 73]]},
        "likely_mistakes": [
            {"row": 20, "col": 7, "label": "water", "predicted": "meadow", "probability": 0.93, "x": 380225.0}
        ],
    },
    "advice": ["class 'water' has 3 pixels in one polygon: add some elsewhere"],
    "warnings": [],
}

SCENES: Example = {
    "scenes": [
        {
            "id": ID,
            "name": "scene.tif",
            "created": "2026-01-31T12:00:00Z",
            "expires": "2026-02-07T12:00:00Z",
            "rows": 240,
            "cols": 240,
            "labelled_pixels": 120,
            "links": [link(f"/scenes/{ID}", "item")],
        }
    ]
}
_WATER = {"value": 1, "name": "water", "color": "#2b6cb0"}
LABELS: Example = {
    "version": 3,
    "rows": 240,
    "cols": 240,
    "pixels": 5,
    "classes": [_WATER | {"pixels": 5, "runs": [[10, 4, 3], [11, 4, 2]]}],
}
LABEL_CHANGE: Example = {
    "classes": [_WATER, {"value": 2, "name": "forest", "color": "#1e6b34"}],
    "set": [{"class": 2, "runs": [[12, 4, 3]]}, {"class": 0, "runs": [[11, 5, 1]]}],
}
LABEL_FEATURES: Example = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "properties": {"class": "water", "value": 1, "color": "#2b6cb0", "runs": [[10, 4, 1]]},
            "geometry": {
                "type": "MultiPolygon",
                "coordinates": [[[[13.1, 52.5], [13.1, 52.4], [13.2, 52.4], [13.2, 52.5], [13.1, 52.5]]]],
            },
        }
    ],
}

LIVE_STATE: Example = {"state": "computing", "progress": 40}
LIVE_ESTIMATE: Example = {
    "etag": '"3-0123456789abcdef"',
    "is_done": True,
    "classes": ["water", "forest"],
    "estimate": {
        "pixels": 40,
        "clusters": 8,
        "oa": {"value": 0.95, "interval": [0.84, 0.99]},
        "confusion": [[19, 1], [1, 19]],
    },
    "mistakes": [{"row": 12, "col": 5, "label": "forest", "predicted": "water", "probability": 0.98}],
}
LIVE_SUGGESTIONS: Example = {
    "etag": '"3-0123456789abcdef"',
    "places": [{"row": 31, "col": 7, "guess": 2, "margin": 0.02}],
}
_BANDS = {"bands": [1, 2, 3], "wavelengths_nm": [450.0, 550.0, 650.0]}
SCENE_SPECTRA: Example = _BANDS | {
    "classes": [_WATER | {"pixels": 5, "mean": [0.04, 0.05, 0.03], "deviation": [0.01, 0.01, 0.01]}]
}
SCENE_PIXEL: Example = {"row": 10, "col": 4, "lon": 13.1, "lat": 52.5, **_BANDS, "values": [0.04, 0.05, 0.03]}

HEALTH: Example = {
    "status": "ready",
    "reasons": [],
    "warnings": [],
    "version": "0.1.0",
    "uptime_s": 3600.0,
    "workers": [
        {
            "name": "cpu-0",
            "device": "cpu",
            "pid": 4242,
            "state": "ready",
            "provider": "ONNX Runtime 1.20.0 CPUExecutionProvider",
            "reason": None,
            "heartbeat": 1769860800.0,
            "heartbeat_age_s": 0.4,
            "members": [],
            "left_out": [],
        }
    ],
    "training_workers": [],
    "models": ["demo"],
    "jobs": {"running": 1, "successful": 12},
    "disk": {"free_bytes": 80_000_000_000, "total_bytes": 250_000_000_000, "min_free_bytes": 1_000_000_000},
}
LIVE: Example = {"status": "live"}
READY: Example = {"status": "ready", "warnings": []}
PROBLEM: Example = {
    "type": "urn:hyperscene:problem:scene_unreadable",
    "title": "Scene unreadable",
    "status": 422,
    "detail": "scene.tif is cut short: 1000 bytes of 2000; copy it again",
    "code": "scene_unreadable",
}

# JSON result files, by media type.
FILES: dict[str, Example] = {
    JSON: {
        "scene": {"name": "scene.tif", "rows": 40, "cols": 33, "bands": 5},
        "classes": [CLASSES[0] | {"pixels": 1320, "share": 1.0, "hectares": 118.8}],
        "valid_pixels": 1320,
        "no_data_pixels": 0,
        "mean_confidence": 0.93,
        "warnings": [],
    },
    "application/geo+json": {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": ID,
        "properties": {"datetime": "2026-01-31T12:00:00Z", "proj:code": "EPSG:32633"},
        "assets": {"classes": {"href": "./classes.tif", "type": "image/tiff", "roles": ["data"]}},
    },
}
