"""What a map tells of its ground: against pyproj-free references and the grid itself."""

import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin

from hyperscene.service.mapping.grids import make_grid
from hyperscene.service.mapping.orientation import crs_name, describe_orientation
from tests.scenes import GRID, UTM

POLAR = CRS.from_epsg(3413)  # north along longitude -45
TURNED = Affine.translation(500_000, 5_800_000) @ Affine.rotation(33) @ Affine.scale(20, -20)


def from_table(table, lon, lat):
    """Column and row by the table, as a program that shows the map finds them."""
    cols, rows = np.array(table["cols"]), np.array(table["rows"])
    last = len(cols) - 1
    across = (lon - table["west"]) / (table["east"] - table["west"]) * last
    down = (table["north"] - lat) / (table["north"] - table["south"]) * last
    left, top = min(int(across), last - 1), min(int(down), last - 1)
    right, low = across - left, down - top
    weights = np.array([[(1 - low) * (1 - right), (1 - low) * right], [low * (1 - right), low * right]])
    return [(weights * part[top : top + 2, left : left + 2]).sum() for part in (cols, rows)]


@pytest.mark.parametrize("transform", [GRID, TURNED, from_origin(380_000, 5_820_000, 2, 2)])
def test_the_table_finds_the_pixels_of_a_large_scene_within_a_tenth(transform):
    grid = make_grid(3000, 2000, UTM, transform)
    table = describe_orientation(grid)["pixel_table"]
    for row, col in [(0, 0), (1234, 777), (2999, 1999), (2, 1990)]:
        lon, lat = grid.lon_lat(row, col)
        assert from_table(table, lon, lat) == pytest.approx([col + 0.5, row + 0.5], abs=0.1)


def test_a_pixel_is_as_wide_on_the_ground_as_its_reference_system_says():
    assert describe_orientation(make_grid(40, 33, UTM, GRID))["pixel_m"] == pytest.approx(30, rel=1e-3)
    feet = CRS.from_epsg(2263)  # New York, in US survey feet
    foot = make_grid(40, 33, feet, from_origin(980_000, 200_000, 100, 100))
    assert describe_orientation(foot)["pixel_m"] == pytest.approx(30.48, rel=1e-3)
    degrees = make_grid(100, 100, CRS.from_epsg(4326), from_origin(13, 60.05, 0.001, 0.001))
    assert describe_orientation(degrees)["pixel_m"] == pytest.approx(55.8, rel=1e-3)  # half of that at the equator
    web = make_grid(100, 100, CRS.from_epsg(3857), from_origin(1_447_000, 8_400_000, 30, 30))
    assert describe_orientation(web)["pixel_m"] == pytest.approx(15.0, rel=0.02)  # Mercator is stretched there


def test_north_is_up_on_a_mercator_map_and_known_on_a_polar_one():
    assert describe_orientation(make_grid(40, 33, UTM, TURNED))["north_deg"] == 0
    # Near the pole, west of Greenland's meridian: the pole lies to the right of the scene.
    polar = make_grid(40, 40, POLAR, from_origin(-200_000, 600, 30, 30))
    found = describe_orientation(polar)
    assert found["pixel_table"] is None
    assert found["north_deg"] == pytest.approx(90, abs=0.5)
    assert found["pixel_m"] == pytest.approx(30, rel=0.04)
    assert found["scene_crs"] == "EPSG:3413"


def test_nothing_is_claimed_of_a_scene_without_georeference():
    assert set(describe_orientation(make_grid(40, 33, None, Affine.identity())).values()) == {None}


def test_a_reference_system_without_code_has_its_name():
    assert crs_name(CRS.from_epsg(32633)) == "EPSG:32633"
    local = CRS.from_wkt('LOCAL_CS["drone field",UNIT["metre",1],AXIS["Easting",EAST],AXIS["Northing",NORTH]]')
    assert crs_name(local) == "drone field"
