"""Label files that someone sends: recognised by content, and refused in one sentence if they cannot be used."""

import json
import struct
import zipfile

import numpy as np
import pytest

from hyperscene.errors import LabelsUnusable
from hyperscene.service.mapping.limits import Limits
from hyperscene.training.data.sent_labels import describe_labels, pin_drivers
from tests.label_files import RECTANGLES, collection, many_vertices, write_geojson, write_vectors
from tests.scenes import quadrants, spectra_of, write_tif

LIMITS = Limits(10**6, 100, 10**9, 10**6)
PIXELS = {"wheat": 36, "soil": 32, "water": 32, "road": 31}


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    return write_tif(tmp_path_factory.mktemp("scene") / "scene.tif", spectra_of(quadrants(34, 32), 3))


def described(path, tif, class_field=None):
    """The document of a file that was received under a name of the server's."""
    received = path.with_name("part0")
    path.rename(received)
    return describe_labels(received, tif, class_field, LIMITS)


def pixels_of(document):
    return {entry["name"]: entry["pixels"] for entry in document["classes"]}


@pytest.mark.parametrize(
    ("name", "driver", "known"),
    [
        ("labels.gpkg", "GPKG", "GeoPackage"), ("labels.fgb", "FlatGeobuf", "FlatGeobuf"),
        ("labels.zip", "ESRI Shapefile", "Shapefile"), ("labels.json", "GeoJSON", "GeoJSON"),
    ],
)  # fmt: skip
def test_every_format_is_recognised_by_content_and_gives_the_same_classes(name, driver, known, tmp_path, tif):
    document = described(write_vectors(tmp_path / name, driver), tif)
    assert (document["format"], document["class_field"]) == (known, "crop")
    assert pixels_of(document) == PIXELS
    assert {entry["shapes"] for entry in document["classes"]} == {2}


def test_a_table_of_coordinates_and_a_raster_are_label_files_too(tmp_path, tif):
    (tmp_path / "t.csv").write_text("row,col,crop\n3,3,wheat\n4,4,wheat\n5,20,soil\n")
    assert pixels_of(described(tmp_path / "t.csv", tif)) == {"soil": 1, "wheat": 2}
    raster = write_tif(tmp_path / "r.tif", np.where(quadrants(34, 32) < 3, quadrants(34, 32), 0).astype("uint8"))
    assert set(pixels_of(described(raster, tif)).values()) == {17 * 16}


def test_labels_in_another_coordinate_system_are_moved_to_the_scenes(tmp_path, tif):
    import shapely
    from rasterio.warp import transform_geom

    document = collection(crs=None)  # GeoJSON without a CRS is in WGS 84
    for feature in document["features"]:
        feature["geometry"] = transform_geom("EPSG:32633", "EPSG:4326", feature["geometry"], precision=9)
    assert shapely.from_geojson(json.dumps(document["features"][0])).bounds[0] < 90
    (tmp_path / "l.geojson").write_text(json.dumps(document))
    assert pixels_of(described(tmp_path / "l.geojson", tif)) == PIXELS


def test_fields_are_listed_if_none_seems_to_hold_the_classes(tmp_path, tif):
    document = described(write_geojson(tmp_path / "l.geojson", field="x"), tif)
    assert document["class_field"] == "x"  # the only one with few values
    (tmp_path / "l.csv").write_text("row,col,a,b\n3,3,p,1\n4,4,q,2\n5,20,p,1\n")
    document = described(tmp_path / "l.csv", tif)
    assert (document["class_field"], document["classes"]) == (None, [])
    assert [field["name"] for field in document["fields"]] == ["row", "col", "a", "b"]


def empty_geometries():
    document = collection()
    for feature in document["features"]:
        feature["geometry"] = None
    return json.dumps(document)


OVERLAPPING = (*RECTANGLES, ("gravel", (3, 3, 5, 5)))
REFUSED = {
    "outside": (lambda: json.dumps(collection(shift=90_000.0)), "no shape of .* covers a pixel of the scene"),
    "another zone": (lambda: json.dumps(collection(crs="EPSG:32601")), "no shape of|do not fit"),
    "one class": (lambda: json.dumps(collection(RECTANGLES[:2])), "contain 1 class and at least two are needed"),
    "overlapping": (lambda: json.dumps(collection(OVERLAPPING)), "4 pixels lie in shapes of two classes"),
    "a million vertices": (lambda: many_vertices(1_000_000), "at most 500000 are accepted: simplify them"),
    "empty": (empty_geometries, "all 8 shapes of .* are empty"),
    "no features": (lambda: json.dumps(collection(())), "contains no shapes"),
    "a CRS by address": (
        lambda: json.dumps(collection() | {"crs": {"type": "link", "properties": {"href": "http://127.0.0.1:1/"}}}),
        "names its coordinate system by address",
    ),
    "a VRT": (lambda: "<OGRVRTDataSource><OGRVRTLayer name='a'/></OGRVRTDataSource>", "is no label file"),
    "text": (lambda: "hello", "is no label file"),
    "half a document": (lambda: json.dumps(collection())[:-40], "is not valid JSON"),
    "a bare geometry": (lambda: '{"type": "Point", "coordinates": [0, 0]}', "is no FeatureCollection"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_labels_that_cannot_be_used_are_refused_in_one_sentence(case, tmp_path, tif):
    content, reason = REFUSED[case]
    (tmp_path / "l.geojson").write_text(content())
    with pytest.raises(LabelsUnusable, match=reason) as refused:
        described(tmp_path / "l.geojson", tif, "crop")
    assert "\n" not in str(refused.value)


def test_an_unknown_field_is_named_with_those_that_exist(tmp_path, tif):
    with pytest.raises(LabelsUnusable, match="has no field 'plant'; its fields are id, crop"):
        described(write_geojson(tmp_path / "l.geojson"), tif, "plant")


def test_an_archive_may_not_unpack_to_more_than_its_limit(tmp_path, tif):
    with zipfile.ZipFile(tmp_path / "l.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("shp", "shx", "dbf"):
            archive.writestr(f"l.{part}", bytes(40 << 20))
    with pytest.raises(LabelsUnusable, match="unpacks to more than"):
        described(tmp_path / "l.zip", tif)


def test_a_part_of_a_shapefile_and_a_plain_database_are_refused(tmp_path, tif):
    (tmp_path / "l.shp").write_bytes(struct.pack(">i", 9994) + bytes(96))
    with pytest.raises(LabelsUnusable, match="one file of a Shapefile"):
        described(tmp_path / "l.shp", tif)
    (tmp_path / "l.gpkg").write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(LabelsUnusable, match="is no label file"):
        described(tmp_path / "l.gpkg", tif)


def test_only_the_drivers_of_label_files_are_left_in_the_process():
    assert set(pin_drivers().list_drivers()) <= {"GPKG", "FlatGeobuf", "GeoJSON", "ESRI Shapefile"}
