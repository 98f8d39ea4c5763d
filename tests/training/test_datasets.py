"""Scenes and labels in each format, and refusals."""

import json
import warnings

import h5py
import numpy as np
import pyogrio
import pytest
import scipy.io
import shapely
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform as transform_points

from hyperscene.errors import LabelsUnusable, SceneUnreadable, SceneUnusable, ServiceError
from hyperscene.service.mapping.scenes import open_scene, read_cube
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.swath_labels import ground_grid
from tests.products import ENMAP_STEM, KINDS, enmap_masks, enmap_values, positions, write_any, write_enmap, write_prisma
from tests.scenes import GRID, UTM, quadrants, spectra_of, write_envi, write_tif

LABELS = quadrants(12, 10)
VALUES = spectra_of(LABELS, 5)


def load(*files, **options) -> LabelledScene:
    return load_labelled_scene(LabelledFiles(*files, **options))


@pytest.fixture
def scene_path(tmp_path):
    return write_tif(tmp_path / "scene.tif", VALUES, wavelengths_nm=np.linspace(450, 900, 5))


@pytest.fixture
def labels_path(tmp_path):
    return write_tif(tmp_path / "labels.tif", LABELS, nodata=0)


def save_mat_73(path, **arrays):
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file[name] = array.T  # MATLAB stores arrays column-major
    content = bytearray(path.read_bytes())
    content[:19] = b"MATLAB 7.3 MAT-file"
    path.write_bytes(content)


def polygons(path, driver, crs=UTM, field="kind", names=("wheat", "soil", "water", "wheat"), boxes=None):
    """Four rectangles of the scene, in any coordinate system."""
    boxes = boxes or [(0, 0, 5, 6), (5, 0, 10, 6), (0, 6, 5, 12), (5, 6, 10, 12)]
    shapes = []
    for left, top, right, bottom in boxes:
        corners = [GRID @ corner for corner in ((left, top), (right, top), (right, bottom), (left, bottom))]
        if crs != UTM:
            corners = list(zip(*transform_points(UTM, crs, *zip(*corners, strict=True)), strict=True))
        shapes.append(shapely.Polygon(corners))
    values = np.array(names[: len(shapes)], object if isinstance(names[0], str) else np.int32)
    pyogrio.raw.write(
        path, np.array(shapely.to_wkb(shapes)), [values], [field],
        geometry_type="Polygon", crs=crs.to_wkt(), driver=driver,
    )  # fmt: skip
    return path


def test_geotiff_with_a_label_raster(scene_path, labels_path):
    scene = load(scene_path, labels_path)
    np.testing.assert_array_equal(scene.cube, VALUES)
    np.testing.assert_array_equal(scene.labels, LABELS)
    np.testing.assert_allclose(scene.wavelengths_nm, np.linspace(450, 900, 5))
    standardised = scene.standardised().reshape(-1, 5)
    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(standardised.std(axis=0), 1, atol=1e-5)


def test_envi_scene_and_envi_labels_with_names_and_wavelengths(tmp_path):
    header = "wavelength units = Nanometers\nwavelength = {450, 500, 550, 600, 650}\n"
    scene_path = write_envi(tmp_path / "s.bsq", VALUES, header)
    names = "classes = 5\nclass names = {Unclassified, wheat, soil, water, road}\n"
    labels_path = write_envi(tmp_path / "l.img", LABELS[..., None], names)
    scene = load(scene_path, labels_path)
    assert [entry.name for entry in scene.legend] == ["wheat", "soil", "water", "road"]
    assert scene.wavelengths_nm[2] == 550


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_matlab_files_are_found_by_shape(tmp_path, version):
    save = save_mat_73 if version == "7.3" else lambda path, **arrays: scipy.io.savemat(path, arrays)
    save(tmp_path / "cube.mat", pines=VALUES, note=np.arange(3.0))
    save(tmp_path / "gt.mat", pines_gt=LABELS)
    scene = load(tmp_path / "cube.mat", tmp_path / "gt.mat")
    np.testing.assert_allclose(scene.cube, VALUES)
    np.testing.assert_array_equal(scene.labels, LABELS)
    assert scene.wavelengths_nm is None


def test_several_cubes_in_one_file_are_refused_until_one_is_named(tmp_path):
    scipy.io.savemat(tmp_path / "two.mat", {"raw": VALUES, "smooth": VALUES * 2, "gt": LABELS, "other": LABELS})
    with pytest.raises(SceneUnreadable, match=r"raw 12 x 10 x 5.*choose with --variable"):
        load(tmp_path / "two.mat", tmp_path / "two.mat")
    with pytest.raises(SceneUnreadable, match=r"gt 12 x 10.*choose with --label-variable"):
        load(tmp_path / "two.mat", tmp_path / "two.mat", variable="smooth")
    with pytest.raises(SceneUnreadable, match=r"no variable 'rough'; it contains raw"):
        load(tmp_path / "two.mat", tmp_path / "two.mat", variable="rough")
    scene = load(tmp_path / "two.mat", tmp_path / "two.mat", variable="smooth", label_variable="gt")
    np.testing.assert_allclose(scene.cube, VALUES * 2)


def test_numpy_files_with_sparse_label_values(tmp_path):
    np.save(tmp_path / "cube.npy", VALUES.astype(np.float64))
    np.save(tmp_path / "gt.npy", np.choose(LABELS, [0, 1, 10, 11, 14]))
    scene = load(tmp_path / "cube.npy", tmp_path / "gt.npy")
    np.testing.assert_array_equal(scene.labels, LABELS)
    assert [(entry.value, entry.name) for entry in scene.legend] == [
        (1, "class 1"),
        (10, "class 10"),
        (11, "class 11"),
        (14, "class 14"),
    ]


def test_wavelengths_come_from_a_file_where_the_scene_has_none(tmp_path):
    np.save(tmp_path / "cube.npy", VALUES)
    np.save(tmp_path / "gt.npy", LABELS)
    (tmp_path / "nm.txt").write_text("0.45\n0.5\n0.55\n0.6\n0.65\n")
    scene = load(tmp_path / "cube.npy", tmp_path / "gt.npy", wavelengths=tmp_path / "nm.txt")
    np.testing.assert_allclose(scene.wavelengths_nm, [450, 500, 550, 600, 650])
    (tmp_path / "nm.txt").write_text("0.45\n")
    with pytest.raises(SceneUnusable, match="1 wavelengths for 5 bands"):
        load(tmp_path / "cube.npy", tmp_path / "gt.npy", wavelengths=tmp_path / "nm.txt")


@pytest.mark.parametrize(("suffix", "driver"), [(".gpkg", "GPKG"), (".geojson", "GeoJSON"), (".shp", "ESRI Shapefile")])
@pytest.mark.parametrize("epsg", [32633, 4326, 3857])
def test_polygons_are_reprojected_and_rasterised(tmp_path, scene_path, suffix, driver, epsg):
    if driver == "GeoJSON" and epsg != 4326:
        epsg = 4326  # GeoJSON allows no other
    path = polygons(tmp_path / f"p{suffix}", driver, CRS.from_epsg(epsg))
    scene = load(scene_path, path, class_field="kind")
    assert [entry.name for entry in scene.legend] == ["soil", "water", "wheat"]
    expected = np.choose(LABELS - 1, [3, 1, 2, 3])  # in alphabetical order
    np.testing.assert_array_equal(scene.labels, expected)


def test_numbered_polygons_keep_their_numbers(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG", names=(2, 5, 10, 2))
    scene = load(scene_path, path, class_field="kind", classes="2=a,5=b,10=c")
    assert [(entry.value, entry.name) for entry in scene.legend] == [(2, "a"), (5, "b"), (10, "c")]
    np.testing.assert_array_equal(scene.labels, np.choose(LABELS - 1, [1, 2, 3, 1]))


def test_classes_in_another_order_do_not_swap_polygon_names(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG")
    with pytest.raises(LabelsUnusable, match="own classes are soil, water, wheat; --classes names 'Wheat'"):
        load(scene_path, path, class_field="kind", classes="Wheat,Soil,Water")
    scene = load(scene_path, path, class_field="kind", classes="wheat #aabbcc,soil,water")
    assert [(entry.name, entry.color) for entry in scene.legend][2] == ("wheat", "#aabbcc")


def test_a_polygon_without_a_class_is_refused(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG", names=("a", "", "b", "c"))
    with pytest.raises(LabelsUnusable, match="has no value in 'kind'"):
        load(scene_path, path, class_field="kind")


def test_metres_in_a_geojson_that_should_hold_degrees_are_refused(tmp_path, scene_path):
    box = [[380_000, 5_820_000], [380_090, 5_820_000], [380_090, 5_819_900], [380_000, 5_820_000]]
    feature = {"type": "Feature", "properties": {"kind": "a"}, "geometry": {"type": "Polygon", "coordinates": [box]}}
    (tmp_path / "p.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    with pytest.raises(LabelsUnusable, match=r"p\.geojson"):
        load(scene_path, tmp_path / "p.geojson", class_field="kind")


def write_shapes(path, shapes, names, driver, geometry_type, **options):
    pyogrio.raw.write(
        path, np.array([shapely.to_wkb(shape) for shape in shapes]), [np.array(names, object)], ["kind"],
        geometry_type=geometry_type, crs=UTM.to_wkt(), driver=driver, **options,
    )  # fmt: skip
    return path


def test_points_and_lines_label_the_pixels_that_they_touch(tmp_path, scene_path):
    points = [shapely.Point(GRID @ (1.2, 3.9)), shapely.Point(GRID @ (7.5, 8.5))]
    path = write_shapes(tmp_path / "p.fgb", points, ["a", "b"], "FlatGeobuf", "Point")
    scene = load(scene_path, path, class_field="kind")
    assert np.argwhere(scene.labels == 1).tolist() == [[3, 1]]
    assert np.argwhere(scene.labels == 2).tolist() == [[8, 7]]
    lines = [
        shapely.LineString([GRID @ (1.5, 2.5), GRID @ (5.5, 2.5)]),
        shapely.LineString([GRID @ (8.1, 6.5), GRID @ (8.9, 6.6)]),
    ]
    path = write_shapes(tmp_path / "l.gpkg", lines, ["a", "b"], "GPKG", "LineString")
    scene = load(scene_path, path, class_field="kind")
    assert np.argwhere(scene.labels == 1).tolist() == [[2, col] for col in range(1, 6)]
    assert np.argwhere(scene.labels == 2).tolist() == [[6, 8]]


def test_several_layers_are_refused(tmp_path, scene_path):
    point = [shapely.Point(GRID @ (1, 1))]
    for layer in ("first", "second"):
        write_shapes(tmp_path / "p.gpkg", point, ["a"], "GPKG", "Point", layer=layer, append=layer == "second")
    with pytest.raises(LabelsUnusable, match="several layers, first, second"):
        load(scene_path, tmp_path / "p.gpkg", class_field="kind")


def test_shapes_of_two_classes_on_one_pixel_are_refused(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG", names=("a", "b"), boxes=[(0, 0, 5, 6), (4, 5, 9, 11)])
    with pytest.raises(
        LabelsUnusable, match=r"1 pixels lie in shapes of two classes in p\.gpkg, the first at row 5, column 4"
    ):
        load(scene_path, path, class_field="kind")
    path = polygons(
        tmp_path / "q.gpkg", "GPKG", names=("a", "a", "b"), boxes=[(0, 0, 5, 6), (4, 5, 9, 11), (6, 0, 9, 3)]
    )
    assert (load(scene_path, path, class_field="kind").labels == 1).sum() == 30 + 30 - 1


@pytest.mark.parametrize("columns", ["x,y", "lon,lat", "Easting,Northing", "col,row"])
def test_a_table_of_coordinates_labels_the_pixels_of_its_points(tmp_path, scene_path, columns):
    pixels = [(1, 3, "reed"), (7, 8, "water"), (2, 3, "reed")]
    lines = []
    for col, row, name in pixels:
        x, y = GRID @ (col + 0.4, row + 0.6)
        if columns == "lon,lat":
            (x,), (y,) = transform_points(UTM, CRS.from_epsg(4326), [x], [y])
        lines.append(f"{col},{row},{name}" if columns == "col,row" else f"{x},{y},{name}")
    (tmp_path / "l.csv").write_text(f"{columns},kind\n" + "\n".join(lines) + "\n")
    scene = load(scene_path, tmp_path / "l.csv", class_field="kind")
    assert [entry.name for entry in scene.legend] == ["reed", "water"]
    assert np.argwhere(scene.labels == 1).tolist() == [[3, 1], [3, 2]]
    assert np.argwhere(scene.labels == 2).tolist() == [[8, 7]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b,kind\n1,2,x\n", "has the columns a, b, kind: name two of them"),
        ("x,y,kind\n", "contains no labels"),
        ("x,y,kind\n380010,north,a\n", "lacks a number for x or y"),
        ("x,y,kind\n380010,5819990\n", "lacks a number"),
        ("x,y,kind\n380010,nan,a\n", "NaN or infinity"),
        ("x,y,kind\n380010,5819990,\n", "has no value in 'kind'"),
        ("x,y,sort\n380010,5819990,a\n", "no field 'kind'; its fields are x, y, sort"),
        ("", "has the columns none"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path, scene_path, text, reason):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(LabelsUnusable, match=reason):
        load(scene_path, tmp_path / "l.csv", class_field="kind")


def test_labels_of_a_shape_or_of_an_area_belong_together(tmp_path, scene_path):
    boxes = [(0, 0, 3, 3), (3, 0, 6, 3), (0, 6, 3, 9)]
    path = polygons(tmp_path / "p.gpkg", "GPKG", names=("a", "a", "b"), boxes=boxes)
    scene = load(scene_path, path, class_field="kind")
    assert sorted(np.unique(scene.clusters)) == [0, 1, 2, 3]
    assert len(np.unique(scene.clusters[0:3, 0:6])) == 2
    raster = np.zeros((12, 10), np.uint8)
    raster[0:2, 0:2] = raster[5, 5] = 1
    raster[2, 2] = 2
    scene = load(scene_path, write_tif(tmp_path / "l.tif", raster))
    assert len(np.unique(scene.clusters)) == 4
    assert len(np.unique(scene.clusters[0:2, 0:2])) == 1


def test_labels_without_a_coordinate_system_must_have_the_coordinates_of_the_scene(tmp_path, scene_path):
    path = write_tif(tmp_path / "l.tif", LABELS, crs=None, transform=from_origin(380_300, 5_820_000, 30, 30))
    with pytest.raises(LabelsUnusable, match="columns off"):
        load(scene_path, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        path = write_tif(tmp_path / "plain.tif", LABELS, crs=None, transform=Affine.identity())
        np.testing.assert_array_equal(load(scene_path, path).labels, LABELS)


def test_other_variables_in_a_matlab_file_are_ignored(tmp_path, labels_path):
    with h5py.File(tmp_path / "c.mat", "w") as file:
        file["cube"] = VALUES.T
        file["text"] = "a note"
        file["nothing"] = h5py.Empty("f")
        file.create_group("group")["inner"] = VALUES.T
    np.testing.assert_allclose(load(tmp_path / "c.mat", labels_path).cube, VALUES)


def test_a_value_that_no_sensor_measures_is_refused(tmp_path, labels_path):
    values = VALUES.copy()
    values[0, 0] = -3.4e38
    with pytest.raises(SceneUnusable, match="no-data value"):
        load(write_tif(tmp_path / "s.tif", values), labels_path)


def test_an_empty_cube_is_refused(tmp_path, labels_path):
    np.save(tmp_path / "cube.npy", np.zeros((12, 10, 0)))
    with pytest.raises(SceneUnreadable, match="no cube"):
        load(tmp_path / "cube.npy", labels_path)


def test_a_missing_class_field_is_refused_with_the_fields_of_the_file(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG")
    with pytest.raises(LabelsUnusable, match=r"no field 'Kind'; its fields are kind"):
        load(scene_path, path, class_field="Kind")
    with pytest.raises(LabelsUnusable, match="--class-field must name"):
        load(scene_path, path)


def test_polygons_that_miss_the_scene_are_refused(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG", boxes=[(500, 500, 510, 510), (520, 500, 530, 510)])
    with pytest.raises(LabelsUnusable, match="both show the same area"):
        load(scene_path, path, class_field="kind")


def test_a_class_whose_polygons_contain_no_pixel_centre_is_refused(tmp_path, scene_path):
    path = polygons(tmp_path / "p.gpkg", "GPKG", boxes=[(0, 0, 5, 6), (5, 0, 10, 6), (0.6, 8.6, 0.9, 8.9)])
    with pytest.raises(LabelsUnusable, match=r"class 'water' of p\.gpkg covers no pixel centre"):
        load(scene_path, path, class_field="kind")


def test_polygons_need_a_scene_with_coordinates(tmp_path):
    np.save(tmp_path / "cube.npy", VALUES)
    with pytest.raises(LabelsUnusable, match="no coordinate system"):
        load(tmp_path / "cube.npy", polygons(tmp_path / "p.gpkg", "GPKG"), class_field="kind")


def test_labels_of_another_size_are_refused(tmp_path, scene_path):
    path = write_tif(tmp_path / "l.tif", quadrants(9, 10))
    with pytest.raises(LabelsUnusable, match=r"l\.tif is 9 x 10 and scene\.tif 12 x 10 pixels"):
        load(scene_path, path)


def test_labels_at_other_coordinates_are_refused(tmp_path, scene_path):
    path = write_tif(tmp_path / "l.tif", LABELS, transform=from_origin(380_300, 5_820_000, 30, 30))
    with pytest.raises(LabelsUnusable, match=r"0\.0 rows and 10\.0 columns off"):
        load(scene_path, path)


def test_a_coordinate_system_may_be_written_in_two_ways(tmp_path, scene_path):
    spelt = CRS.from_proj4("+proj=utm +zone=33 +datum=WGS84 +units=m +no_defs")
    scene = load(scene_path, write_tif(tmp_path / "l.tif", LABELS, crs=spelt))
    np.testing.assert_array_equal(scene.labels, LABELS)


def test_a_cube_with_bands_first_is_recognised_by_the_size_of_the_labels(tmp_path):
    np.save(tmp_path / "cube.npy", np.moveaxis(VALUES, -1, 0))
    np.save(tmp_path / "gt.npy", LABELS)
    with pytest.raises(LabelsUnusable, match="save it as rows x cols x bands"):
        load(tmp_path / "cube.npy", tmp_path / "gt.npy")


def test_undeclared_nan_is_refused_and_the_message_names_the_option(tmp_path, labels_path):
    values = VALUES.copy()
    values[0, 0, 2] = np.nan
    for path in (tmp_path / "cube.npy", tmp_path / "cube.tif"):
        np.save(path, values) if path.suffix == ".npy" else write_tif(path, values)
        with pytest.raises(SceneUnusable, match=r"in 1 pixels .* --nan-is-nodata"):
            load(path, labels_path)
        scene = load(path, labels_path, nan_is_nodata=True)
        assert scene.labels[0, 0] == 0
        np.testing.assert_allclose(scene.cube[0, 0], scene.band_mean)


def test_nan_declared_as_no_data_is_left_out(tmp_path, labels_path):
    values = VALUES.copy()
    values[3:5, 2:4] = np.nan
    scene = load(write_tif(tmp_path / "s.tif", values, nodata=np.nan), labels_path)
    assert (scene.labels[3:5, 2:4] == 0).all()
    assert scene.warnings == ("4 labelled pixels have no data and were left out",)
    np.testing.assert_allclose(scene.band_mean, np.nanmean(values, axis=(0, 1)), rtol=1e-5)


def test_a_single_class_is_refused(tmp_path, scene_path):
    with pytest.raises(LabelsUnusable, match="1 class and at least two are needed"):
        load(scene_path, write_tif(tmp_path / "l.tif", (LABELS > 2).astype("uint8")))


def test_fractional_labels_are_refused(tmp_path):
    np.save(tmp_path / "cube.npy", VALUES)
    np.save(tmp_path / "gt.npy", LABELS + 0.5)
    with pytest.raises(LabelsUnusable, match="values that are not classes"):
        load(tmp_path / "cube.npy", tmp_path / "gt.npy")


@pytest.mark.parametrize("name", ["cube.npy", "cube.mat", "cube.tif", "cube.xyz"])
@pytest.mark.parametrize("content", [b"", b"rubbish" * 100, None])
def test_files_that_cannot_be_read_are_refused(tmp_path, labels_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ServiceError, match=name):
        load(tmp_path / name, labels_path)


def test_polygons_that_cannot_be_read_are_refused(tmp_path, scene_path):
    (tmp_path / "p.geojson").write_text(json.dumps({"type": "nothing"}))
    with pytest.raises(LabelsUnusable, match=r"p\.geojson"):
        load(scene_path, tmp_path / "p.geojson", class_field="kind")


def test_a_constant_band_does_not_divide_by_zero(tmp_path, labels_path):
    values = VALUES.copy()
    values[..., 1] = 7
    scene = load(write_tif(tmp_path / "s.tif", values), labels_path)
    assert np.isfinite(scene.standardised()).all()


def test_labels_on_the_ground_are_brought_to_the_pixels_of_a_swath(tmp_path):
    rows, cols = 30, 25
    swath = write_prisma(tmp_path / "PRS_L2C_STD.he5", np.full((rows, cols, 11), 9_000), "L2C")
    truth = np.zeros((rows, cols), np.uint8)
    truth[4:12, 3:20], truth[18:26, 3:20] = 1, 2
    cells = ground_grid(open_scene(swath))
    on_ground = np.where(cells.pixels >= 0, truth.ravel()[cells.pixels], 0).astype(np.uint8)
    path = write_tif(tmp_path / "l.tif", on_ground, nodata=0, crs=cells.crs, transform=cells.transform)
    scene = load_labelled_scene(LabelledFiles(swath, path))
    seen = np.isin(np.arange(rows * cols), cells.pixels).reshape(rows, cols)
    np.testing.assert_array_equal(scene.labels, np.where(seen, truth, 0))
    lon, lat = positions(rows, cols)
    corners = [(5, 4), (5, 18), (10, 18), (10, 4)]
    features = [
        {"type": "Feature", "properties": {"class": name}, "geometry": {"type": "Polygon", "coordinates": [
            [[float(lon[row + down, col]), float(lat[row + down, col])] for row, col in [*corners, corners[0]]]]}}
        for name, down in (("field", 0), ("water", 14))
    ]  # fmt: skip
    (tmp_path / "l.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    drawn = load_labelled_scene(LabelledFiles(swath, tmp_path / "l.geojson", class_field="class")).labels
    assert (drawn[6:10, 5:18] == 1).mean() > 0.9
    np.testing.assert_array_equal(drawn[drawn > 0], truth[drawn > 0])
    sensor = write_tif(tmp_path / "sensor.tif", truth, crs=None, transform=None)
    np.testing.assert_array_equal(load_labelled_scene(LabelledFiles(swath, sensor)).labels, truth)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_product_can_be_trained_on(tmp_path, kind):
    product = write_any(kind, tmp_path / "product")
    scene = open_scene(product)
    labels = np.tile(np.arange(scene.cols, dtype=np.uint8) % 2 + 1, (scene.rows, 1))
    np.save(tmp_path / "labels.npy", labels)
    found = load_labelled_scene(LabelledFiles(product, tmp_path / "labels.npy"))
    values, valid = read_cube(scene)
    np.testing.assert_array_equal(found.labels, np.where(valid, labels, 0))
    np.testing.assert_array_equal(found.cube[valid], values[valid])
    assert (found.sensor, found.acquired) == (scene.sensor, scene.acquired)


def test_a_product_is_labelled_without_its_clouds(tmp_path):
    product = write_enmap(tmp_path / ENMAP_STEM, enmap_values(14, 13))
    labels = np.tile(np.arange(1, 14, dtype=np.uint8) % 2 + 1, (14, 1))
    path = write_tif(tmp_path / "labels.tif", labels, nodata=0)
    scene = load_labelled_scene(LabelledFiles(product, path))
    assert scene.name == ENMAP_STEM
    assert scene.cube.shape == (14, 13, 10)
    clear = load_labelled_scene(LabelledFiles(product, path, mask="none"))
    masks = enmap_masks(14, 13)
    assert not scene.labels[(masks["CLOUD"] | masks["CLOUDSHADOW"]) > 0].any()
    assert clear.labels[masks["CLOUD"] > 0].all()
