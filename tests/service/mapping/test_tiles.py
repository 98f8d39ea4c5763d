"""Tiles show every pixel at its position and in its colour, for any georeference."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine, from_gcps, from_origin
from rio_tiler.io import Reader

from hyperscene.service.mapping.grids import Tile
from hyperscene.service.mapping.tiles import RAMP, read_header, read_pixel, read_tile, render_tile
from tests.scenes import GRID, UTM
from tests.tiles import COLORS, lon_lats, rgba, tile_pixels, write_classes, write_cog

ROWS, COLS = 30, 41
ROTATED = Affine.translation(500_000, 5_800_000) @ Affine.rotation(33) @ Affine.scale(20, -20)
SHEARED = Affine(20, 6, 500_000, -4, -25, 5_800_000)
GEOREFERENCES = {
    "north up": ("EPSG:32633", GRID),
    "rotated": ("EPSG:32633", ROTATED),
    "rotated far": ("EPSG:32633", ROTATED @ Affine.rotation(120)),
    "sheared": ("EPSG:32633", SHEARED),
    "south up": ("EPSG:32633", Affine(30, 0, 380_000, 0, 30, 5_700_000)),
    "mirrored": ("EPSG:32633", Affine(-30, 0, 480_000, 0, -30, 5_700_000)),
    "oblong pixels": ("EPSG:32633", Affine(60, 0, 380_000, 0, -20, 5_700_000)),
    "southern": ("EPSG:32733", from_origin(380_000, 7_000_000, 30, 30)),
    "degrees": ("EPSG:4326", from_origin(13.0, 52.0, 0.001, 0.001)),
    "degrees, south up": ("EPSG:4326", Affine(0.001, 0, 13, 0, 0.001, 52)),
    "degrees, rotated": ("EPSG:4326", Affine.translation(13, 52) @ Affine.rotation(20) @ Affine.scale(0.001, -0.001)),
    "mercator": ("EPSG:3857", from_origin(1_500_000, 6_800_000, 30, 30)),
    "mercator, rotated": ("EPSG:3857", Affine.translation(1.5e6, 6.8e6) @ Affine.rotation(70) @ Affine.scale(20, -20)),
    "mercator, south up": ("EPSG:3857", Affine(30, 0, 1_500_000, 0, 30, 6_800_000)),
    "date line, metres": ("EPSG:32601", from_origin(212_000, 5_820_000, 600, 600)),
    "date line, other side": ("EPSG:32660", from_origin(780_000, 5_820_000, 600, 600)),
    "date line, degrees": ("EPSG:4326", from_origin(179.9, 52.0, 0.005, 0.005)),
    "date line, west of it": ("EPSG:4326", from_origin(-180.1, 52.0, 0.005, 0.005)),
    "degrees up to 360": ("EPSG:4326", from_origin(200.0, 52.0, 0.005, 0.005)),
    "polar projection": ("EPSG:3413", from_origin(-1_000_000, -1_500_000, 1000, 1000)),
    "tiny pixels": ("EPSG:32633", from_origin(380_000, 5_820_000, 0.01, 0.01)),
}


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """Random classes 1..20 with a hole."""
    found = np.random.default_rng(4).integers(1, 21, (ROWS, COLS), np.uint8)
    found[10:14, 20:29] = 0
    return found


def assert_shown(path, values, crs, transform, zoom, px=256):
    """Every pixel's centre has its colour in its tile."""
    positions = tile_pixels(*lon_lats(*values.shape, crs, transform), zoom, px)
    tiles = {(int(x), int(y)) for x, y in zip(positions[0].ravel(), positions[1].ravel(), strict=True)}
    pictures = {(x, y): rgba(render_tile(path, "classes", Tile(zoom, x, y, px))) for x, y in tiles}
    for value, x, y, row, col in zip(values.ravel(), *(numbers.ravel() for numbers in positions), strict=True):
        assert tuple(pictures[x, y][row, col]) == COLORS.get(value, (0, 0, 0, 0))


@pytest.mark.parametrize("name", GEOREFERENCES)
def test_every_pixel_is_in_its_tile(tmp_path, values, name):
    crs, transform = GEOREFERENCES[name]
    path = write_classes(tmp_path, values, crs=crs, transform=transform)
    grid = read_header(path).grid
    assert grid.is_mercator
    assert_shown(path, values, crs, transform, min(30, grid.max_zoom + 2))
    assert_shown(path, values, crs, transform, min(30, grid.max_zoom + 1), 512)


@pytest.mark.parametrize("name", GEOREFERENCES)
def test_a_pixel_is_found_by_the_coordinates_of_its_centre(tmp_path, values, name):
    crs, transform = GEOREFERENCES[name]
    grid = read_header(write_classes(tmp_path, values, crs=crs, transform=transform)).grid
    lon, lat = lon_lats(*values.shape, crs, transform)
    for row, col in ((0, 0), (0, COLS - 1), (ROWS - 1, 0), (17, 23)):
        there = (lon[row, col] + 180) % 360 - 180
        assert grid.pixel_at(there, lat[row, col]) == (row, col)
        np.testing.assert_allclose(grid.lon_lat(row, col), (there, lat[row, col]), atol=1e-9)


@pytest.mark.parametrize("name", GEOREFERENCES)
def test_the_bounds_contain_every_pixel_and_little_more(tmp_path, values, name):
    crs, transform = GEOREFERENCES[name]
    grid = read_header(write_classes(tmp_path, values, crs=crs, transform=transform)).grid
    west, south, east, north = grid.bounds
    lon, lat = lon_lats(*values.shape, crs, transform)
    lon = west + (lon - west) % 360
    assert -180 <= west < 180
    assert lon.max() <= east
    assert south <= lat.min() <= lat.max() <= north
    assert east - west <= 1.2 * (lon.max() - lon.min())
    assert north - south <= 1.2 * (lat.max() - lat.min())


@pytest.mark.slow
@pytest.mark.parametrize(("crs", "sign"), [("EPSG:3413", 1), ("EPSG:3031", -1)])
def test_a_raster_around_a_pole_is_shown_up_to_the_edge_of_mercator(tmp_path, crs, sign):
    values = np.random.default_rng(4).integers(1, 21, (40, 40), np.uint8)
    transform = from_origin(-1_100_000, 1_200_000, 100_000, 100_000)
    path = write_classes(tmp_path, values, crs=crs, transform=transform)
    grid = read_header(path).grid
    assert grid.is_mercator
    west, south, east, north = grid.bounds
    assert (west, east) == (-180, 180)
    assert (north if sign > 0 else -south) == pytest.approx(85.0511288)
    lon, lat = lon_lats(40, 40, crs, transform)
    x, y, row, col = tile_pixels(lon, lat, zoom := grid.max_zoom + 2)
    for at in np.argwhere(np.abs(lat) < 85):
        at = tuple(at)
        shown = rgba(render_tile(path, "classes", Tile(zoom, int(x[at]), int(y[at]))))
        assert tuple(shown[row[at], col[at]]) == COLORS[values[at]]


def test_control_points_are_fitted_to_a_transform(tmp_path, values):
    corners = [(0, 0), (0, COLS), (ROWS, COLS), (ROWS, 0)]
    points = [GroundControlPoint(row, col, *(SHEARED @ (col, row)), 0) for row, col in corners]
    path = write_classes(tmp_path, values, crs=UTM, gcps=points)
    assert read_header(path).grid.is_mercator
    assert_shown(path, values, UTM, from_gcps(points), read_header(path).grid.max_zoom + 2)


def test_control_points_on_a_line_give_no_position(tmp_path, values):
    points = [GroundControlPoint(row, row, 380_000 + 30 * row, 5_820_000 - 30 * row, 0) for row in (0, 10, 20)]
    grid = read_header(write_classes(tmp_path, values, crs=UTM, gcps=points)).grid
    assert not grid.is_mercator
    assert grid.crs is None


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (None, None),
        (None, GRID),
        ("EPSG:32633", None),
        ("EPSG:4326", Affine(0.0, 0, 13, 0, 0.0, 52)),
        ("EPSG:4326", from_origin(13, 300, 0.1, 0.1)),
        ("EPSG:3857", from_origin(1e18, 6_800_000, 30, 30)),
        ("EPSG:2193", Affine(5, 1e5, 1e6, 0, 1e-3, 360)),
        ("+proj=longlat +a=1737400 +b=1737400 +no_defs", from_origin(13, 52, 0.001, 0.001)),
        ('LOCAL_CS["a drawing",UNIT["metre",1]]', GRID),
    ],
    ids=[
        "nothing",
        "no system",
        "no transform",
        "no size",
        "no latitude",
        "far away",
        "a line",
        "the Moon",
        "a drawing",
    ],
)
def test_without_a_position_on_earth_tiles_count_pixels(tmp_path, values, crs, transform):
    path = write_classes(tmp_path, values, crs=crs, transform=transform)
    grid = read_header(path).grid
    assert (grid.is_mercator, grid.bounds, grid.lon_lat(0, 0), grid.pixel_at(13, 52)) == (False, None, None, None)
    shown = rgba(render_tile(path, "classes", Tile(0, 0, 0)))
    assert tuple(shown[3, 5]) == COLORS[values[3, 5]]


def test_beyond_mercator_tiles_count_pixels_and_coordinates_are_known(tmp_path, values):
    transform = from_origin(-20_000, 20_000, 1000, 1000)  # round the pole
    grid = read_header(write_classes(tmp_path, values, crs="EPSG:3413", transform=transform)).grid
    assert not grid.is_mercator
    assert grid.pixel_at(*grid.lon_lat(7, 9)) == (7, 9)


def test_a_map_of_the_whole_world_is_cut_at_the_edge_of_mercator(tmp_path):
    values = np.random.default_rng(4).integers(1, 21, (36, 72), np.uint8)
    path = write_classes(tmp_path, values, crs="EPSG:4326", transform=from_origin(-180, 90, 5, 5))
    grid = read_header(path).grid
    assert grid.bounds == pytest.approx((-180, -85.0511287798, 180, 85.0511287798))
    assert_shown(path, values[2:-2], "EPSG:4326", from_origin(-180, 80, 5, 5), grid.max_zoom + 2)


# In pixels


@pytest.fixture(scope="module")
def unplaced(tmp_path_factory):
    """A class map of 700 x 300 pixels without georeference, and its values."""
    values = np.random.default_rng(4).integers(1, 21, (700, 300), np.uint8)
    values = np.kron(values[::20, ::20], np.ones((20, 20), np.uint8))
    return write_classes(tmp_path_factory.mktemp("unplaced"), values, crs=None, transform=None), values


def colors_of(values):
    table = np.zeros((256, 4), np.uint8)
    for value, color in COLORS.items():
        table[value] = color
    return table[values]


def test_at_the_largest_zoom_a_pixel_of_the_tile_is_a_pixel_of_the_raster(unplaced):
    path, values = unplaced
    grid = read_header(path).grid
    assert (grid.min_zoom, grid.max_zoom) == (0, 2)  # 700 pixels in one tile, in two, in four
    shown = rgba(render_tile(path, "classes", Tile(2, 0, 1)))
    np.testing.assert_array_equal(shown, colors_of(values[256:512, :256]))


def test_a_tile_at_the_edge_is_transparent_outside_the_raster(unplaced):
    path, values = unplaced
    shown = rgba(render_tile(path, "classes", Tile(2, 1, 2)))
    np.testing.assert_array_equal(shown[:188, :44], colors_of(values[512:, 256:]))
    assert not shown[188:].any()
    assert not shown[:, 44:].any()


def test_at_zoom_0_the_whole_scene_is_in_one_tile(unplaced):
    path, values = unplaced
    shown = rgba(render_tile(path, "classes", Tile(0, 0, 0)))
    middles = colors_of(values)[10::20, 10::20]  # of blocks of 20 pixels, 5 in the tile
    found = shown[2:175:5, 2:75:5]
    assert (found == middles).all(axis=-1).mean() > 0.99
    assert not shown[176:].any()
    assert not shown[:, 76:].any()


def test_beyond_the_largest_zoom_pixels_grow(unplaced):
    path, values = unplaced
    shown = rgba(render_tile(path, "classes", Tile(5, 3, 2)))  # 32 x 32 pixels
    np.testing.assert_array_equal(shown, np.kron(colors_of(values[64:96, 96:128]), np.ones((8, 8, 1), np.uint8)))


def test_a_large_tile_shows_the_same_area_at_twice_the_resolution(unplaced):
    path, _ = unplaced
    large = rgba(render_tile(path, "classes", Tile(1, 0, 0, 512)))
    parts = [[rgba(render_tile(path, "classes", Tile(2, x, y))) for x in (0, 1)] for y in (0, 1)]
    np.testing.assert_array_equal(large, np.concatenate([np.concatenate(row, axis=1) for row in parts]))


# Everywhere


@pytest.mark.parametrize(
    ("zoom", "x", "y"),
    [
        (12, 0, 2**12 - 1),
        (12, -1, 5),
        (12, 4096, 5),
        (3, 2**30, 2**30),
        (30, 2**30 - 1, 2**30 - 1),
        (0, 0, 1),
        (0, -(2**31), 0),
    ],
)
def test_tiles_outside_the_raster_are_transparent(tmp_path, values, unplaced, zoom, x, y):
    for path in (write_classes(tmp_path, values), unplaced[0]):
        shown = rgba(render_tile(path, "classes", Tile(zoom, x, y)))
        assert shown.shape == (256, 256, 4)
        assert not shown[..., 3].any()


def test_the_tile_of_the_whole_world_shows_a_small_scene(tmp_path):
    path = write_classes(tmp_path, np.full((3000, 3000), 7, np.uint8))
    opaque = rgba(render_tile(path, "classes", Tile(0, 0, 0)))[..., 3] > 0
    row, col = np.argwhere(opaque)[0]
    assert opaque.sum() <= 4
    assert (abs(row - 84), abs(col - 137)) <= (1, 1)


def test_overviews_show_the_most_frequent_class(tmp_path):
    values = np.where(np.random.default_rng(2).random((2000, 2000)) < 0.3, 2, 1).astype(np.uint8)
    values[:, 1000:] = 5
    path = write_classes(tmp_path, values)
    zoom = read_header(path).grid.max_zoom - 3
    lon, lat = lon_lats(4, 4, UTM, GRID @ Affine.scale(500))
    x, y, row, col = (numbers[1] for numbers in tile_pixels(lon, lat, zoom))
    for index, value in ((0, 1), (1, 1), (2, 5), (3, 5)):
        shown = rgba(render_tile(path, "classes", Tile(zoom, int(x[index]), int(y[index]))))
        assert tuple(shown[row[index], col[index]]) == COLORS[value]


@pytest.mark.parametrize("zoom", [9, 10, 11, 12, 13, 15])
def test_a_tile_equals_that_of_rio_tiler(tmp_path, zoom):
    blocks = np.random.default_rng(4).integers(1, 21, (25, 25), np.uint8)
    path = write_classes(tmp_path, np.kron(blocks, np.ones((40, 40), np.uint8)))
    lon, lat = lon_lats(1, 1, UTM, GRID @ Affine.scale(1000))
    x, y = (int(numbers[0, 0]) for numbers in tile_pixels(lon, lat, zoom)[:2])
    with Reader(str(path)) as reader:
        expected = reader.tile(x, y, zoom).data_as_image()[..., 0]
    found = read_tile(path, read_header(path), Tile(zoom, x, y), [1], is_smooth=False)[0]
    assert (found == expected).mean() > 0.98  # edges of blocks may fall on either side


def test_more_than_255_classes_have_their_colours(tmp_path):
    colors = {value: (value % 256, value // 256, 9, 255) for value in range(1, 301)}
    values = np.arange(1, 301, dtype=np.uint16).reshape(10, 30)
    values[0, 0] = 0
    path = write_cog(tmp_path, "classes.tif", values, colors=colors, crs=None, transform=None)
    shown = rgba(render_tile(path, "classes", Tile(0, 0, 0)))
    assert tuple(shown[0, 0]) == (0, 0, 0, 0)
    assert tuple(shown[9, 29]) == colors[300]
    assert tuple(shown[8, 15]) == colors[256]


def test_a_black_class_is_shown(tmp_path):
    path = write_cog(
        tmp_path, "classes.tif", np.full((5, 5), 2, np.uint8), colors={1: (9, 9, 9, 255), 2: (0, 0, 0, 255)},
        crs=None, transform=None,
    )  # fmt: skip
    assert tuple(rgba(render_tile(path, "classes", Tile(0, 0, 0)))[2, 2]) == (0, 0, 0, 255)


def test_probabilities_have_the_colours_of_the_ramp(tmp_path):
    shares = np.array([[0.0, 0.125, 0.25, 0.5], [0.75, 0.875, 1.0, np.nan]])
    as_bytes = np.where(np.isnan(shares), 255, np.round(np.nan_to_num(shares) * 254)).astype(np.uint8)
    bytes_path = write_cog(tmp_path, "bytes.tif", as_bytes, nodata=255, scale=1 / 254, crs=None, transform=None)
    floats_path = write_cog(
        tmp_path, "floats.tif", shares.astype(np.float32), nodata=math.nan, crs=None, transform=None
    )
    stops = [tuple(int(color[start : start + 2], 16) for start in (1, 3, 5)) for color in RAMP]
    for path in (bytes_path, floats_path):
        shown = rgba(render_tile(path, "share", Tile(0, 0, 0)))
        for pixel, stop in enumerate((0, 2, 4, 8, 12, 14, 16)):
            # Some stops are not multiples of a byte's step of 1/254.
            np.testing.assert_allclose(shown[divmod(pixel, 4)].astype(int), (*stops[stop], 255), atol=2)
        for pixel, stop in ((0, 0), (3, 8), (6, 16)):
            assert tuple(shown[divmod(pixel, 4)]) == (*stops[stop], 255)
        assert shown[1, 3, 3] == 0


def test_the_colour_ramp_goes_from_dark_to_bright(tmp_path):
    light = [sum(int(color[start : start + 2], 16) for start in (1, 3, 5)) for color in RAMP]
    assert light == sorted(light)


def test_each_band_is_a_separate_layer(tmp_path):
    values = np.stack([np.full((6, 6), value, np.uint8) for value in (0, 127, 254)], axis=-1)
    path = write_cog(tmp_path, "probabilities.tif", values, nodata=255, scale=1 / 254, crs=None, transform=None)
    shown = [rgba(render_tile(path, "share", Tile(0, 0, 0), band))[3, 3] for band in (1, 2, 3)]
    assert [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue, _ in shown] == [RAMP[0], RAMP[8], RAMP[16]]


def test_overviews_average_probabilities_without_no_data(tmp_path):
    values = np.tile(np.array([[0, 254], [254, 0]], np.uint8), (300, 300))
    values[:, 300:] = 255
    path = write_cog(tmp_path, "confidence.tif", values, nodata=255, scale=1 / 254, crs=None, transform=None)
    header = read_header(path)
    found = read_tile(path, header, Tile(0, 0, 0), [1], is_smooth=True)[0]
    assert (np.abs(found[5:145, 5:70].astype(int) - 127) <= 2).all()
    assert (found[:, 76:] == 255).all()


def test_a_picture_is_transparent_without_data_and_opaque_elsewhere(tmp_path):
    values = np.random.default_rng(1).integers(1, 256, (300, 300, 3), np.uint8)
    values[:10] = 0
    path = write_cog(tmp_path, "picture.tif", values, crs=None, transform=None)
    shown = rgba(render_tile(path, "picture", Tile(1, 0, 0)))
    np.testing.assert_array_equal(shown[10:, :, :3], values[10:256, :256])
    assert not shown[:10].any()
    assert (shown[10:, :, 3] == 255).all()


def test_a_picture_without_missing_data_has_no_alpha(tmp_path):
    values = np.random.default_rng(1).integers(1, 256, (256, 256, 3), np.uint8)
    path = write_cog(tmp_path, "picture.tif", values, crs=None, transform=None)
    np.testing.assert_array_equal(rgba(render_tile(path, "picture", Tile(0, 0, 0)))[..., :3], values)


def test_a_pixel_is_read_with_its_scale(tmp_path):
    values = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    values[0, 0, 1] = 255
    path = write_cog(tmp_path, "probabilities.tif", values, nodata=255, scale=1 / 254)
    np.testing.assert_allclose(read_pixel(path, 2, 3), values[2, 3] / 254)
    np.testing.assert_allclose(read_pixel(path, 0, 0), [0, math.nan, 2 / 254])


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 900), (900, 1)])
def test_tiny_and_thin_rasters_have_tiles(tmp_path, rows, cols):
    values = np.full((rows, cols), 3, np.uint8)
    for georeference in ({"crs": None, "transform": None}, {"crs": UTM, "transform": GRID}):
        path = write_classes(tmp_path, values, **georeference)
        read_header.cache_clear()
        grid = read_header(path).grid
        if grid.is_mercator:
            assert_shown(path, values, UTM, GRID, grid.max_zoom + 2)
        else:
            assert tuple(rgba(render_tile(path, "classes", Tile(grid.max_zoom, 0, 0)))[0, 0]) == COLORS[3]


@pytest.mark.parametrize("name", ["north up", "rotated", "oblong pixels", "degrees", "pixels"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1500), (1500, 1), (2, 1000)])
def test_a_thin_raster_is_visible_along_its_length_at_every_zoom(tmp_path, name, rows, cols):
    crs, transform = GEOREFERENCES.get(name, (None, None))
    classes = write_classes(tmp_path, np.full((rows, cols), 3, np.uint8), crs=crs, transform=transform)
    picture = write_cog(tmp_path, "picture.tif", np.full((rows, cols, 3), 99, np.uint8), crs=crs, transform=transform)
    grid = read_header(classes).grid
    for zoom in range(max(0, grid.min_zoom - 3), grid.max_zoom + 1):
        for row, col in {(at * (rows - 1) // 20, at * (cols - 1) // 20) for at in range(21)}:
            if name == "pixels":
                x, y, inner_row, inner_col = pixel_positions(grid, row, col, zoom)
            else:
                lon, lat = lon_lats(1, 1, crs, transform @ Affine.translation(col, row))
                x, y, inner_row, inner_col = (int(found[0, 0]) for found in tile_pixels(lon, lat, zoom))
            for path, kind in ((classes, "classes"), (picture, "picture")):
                shown = kept_tile(path, kind, Tile(zoom, x, y))
                near = shown[max(0, inner_row - 1) : inner_row + 2, max(0, inner_col - 1) : inner_col + 2, 3]
                assert near.any(), (kind, zoom, row, col)


@lru_cache
def kept_tile(path, kind, tile):
    return rgba(render_tile(path, kind, tile))


def pixel_positions(grid, row, col, zoom):
    step = 2 ** (grid.max_zoom - zoom)
    x, y = (col + 0.5) / step, (row + 0.5) / step
    return int(x // 256), int(y // 256), int(y % 256), int(x % 256)


@pytest.mark.parametrize(("zoom", "px", "times"), [(0, 256, 1), (0, 512, 2), (1, 256, 2), (2, 512, 8)])
def test_in_pixels_the_upper_left_tile_is_correct_at_every_zoom(tmp_path, values, zoom, px, times):
    path = write_classes(tmp_path, values, crs=None, transform=None)
    found = read_tile(path, read_header(path), Tile(zoom, 0, 0, px), [1], is_smooth=False)[0]
    expected = np.zeros((px, px), np.uint8)
    large = np.kron(values, np.ones((times, times), np.uint8))[:px, :px]
    expected[: large.shape[0], : large.shape[1]] = large
    np.testing.assert_array_equal(found, expected)
