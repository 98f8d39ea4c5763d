"""The lattice covers every scene, and the plan's parts fit together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mapping.lattice import Lattice, plan_mapping


def test_centres_lie_in_the_middle_of_their_cells():
    centers, has_center = Lattice(8, 12, 4, 16).place_centers(np.ones((8, 12), bool), 0)
    assert centers[:, :, 0].tolist() == [[2] * 3, [6] * 3]
    assert centers[:, :, 1].tolist() == [[2, 6, 10]] * 2
    assert has_center.all()


def test_last_row_and_column_are_pulled_inside():
    centers, _ = Lattice(9, 13, 4, 16).place_centers(np.ones((9, 13), bool), 0)
    assert centers[-1, -1].tolist() == [8, 12]


def test_a_centre_moves_onto_the_nearest_data():
    valid = np.zeros((8, 8), bool)
    valid[5, 7] = valid[7, 4] = valid[0, 0] = True
    centers, has_center = Lattice(8, 8, 8, 16).place_centers(valid, 0)
    assert centers[0, 0].tolist() == [7, 4] or centers[0, 0].tolist() == [5, 7]
    assert valid[tuple(centers[0, 0])]
    assert has_center.tolist() == [[True]]


def test_a_cell_without_data_has_no_centre():
    valid = np.ones((8, 8), bool)
    valid[:4, 4:] = False
    assert Lattice(8, 8, 4, 16).place_centers(valid, 0)[1].tolist() == [[True, False], [True, True]]


@given(
    rows=st.integers(1, 300),
    stride=st.sampled_from([1, 2, 4, 8]),
    strip_px=st.integers(1, 200),
    batch=st.integers(1, 300),
    is_voting=st.booleans(),
)
def test_strips_cover_every_row_once_and_know_every_patch_that_sees_them(rows, stride, strip_px, batch, is_voting):
    lattice = Lattice(rows, 40, stride, 16)
    plan = plan_mapping(lattice, is_voting=is_voting, batch=batch, strip_px=strip_px)
    assert [row for strip in plan.strips for row in range(strip.top, strip.bottom)] == list(range(rows))
    assert plan.patches_per_tile <= batch
    for strip in plan.strips:
        seen_from = range(strip.top - 7, strip.bottom + 8) if is_voting else range(strip.top, strip.bottom)
        expected = {row // plan.group_px for row in seen_from if 0 <= row < rows}
        assert set(strip.groups) == expected


@pytest.mark.parametrize("group", [0, 3])
def test_a_window_holds_every_patch_of_its_tile(group):
    plan = plan_mapping(Lattice(100, 100, 4, 16), is_voting=True, batch=16, strip_px=50)
    top, bottom = plan.window_rows(group)
    left, right = plan.window_cols(group)
    first, last = group * 16, group * 16 + 15  # the tile's pixels, any of which may be a centre
    assert (top, bottom) == (first - 8, last + 8)
    assert (left, right) == (first - 8, last + 8)
