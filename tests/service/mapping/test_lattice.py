"""The lattice covers every scene, and strips and batches fit together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscene.service.mapping.lattice import Lattice, plan_mapping


def test_centres_lie_in_the_middle_of_their_cells():
    centers, has_patch = Lattice(8, 12, 4, 16).place_centers(np.ones((8, 12), bool), 0)
    assert centers[:, :, 0].tolist() == [[2] * 3, [6] * 3]
    assert centers[:, :, 1].tolist() == [[2, 6, 10]] * 2
    assert has_patch.all()


def test_centres_of_the_last_row_and_column_move_inside():
    centers, _ = Lattice(9, 13, 4, 16).place_centers(np.ones((9, 13), bool), 0)
    assert centers[-1, -1].tolist() == [8, 12]


def test_a_centre_moves_onto_the_nearest_data():
    valid = np.zeros((8, 8), bool)
    valid[5, 7] = valid[7, 4] = valid[0, 0] = True
    centers, has_patch = Lattice(8, 8, 8, 16).place_centers(valid, 0)
    assert centers[0, 0].tolist() == [7, 4] or centers[0, 0].tolist() == [5, 7]
    assert valid[tuple(centers[0, 0])]
    assert has_patch.tolist() == [[True]]


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
def test_strips_cover_every_row_once_and_list_their_batch_rows(rows, stride, strip_px, batch, is_voting):
    lattice = Lattice(rows, 40, stride, 16)
    plan = plan_mapping(lattice, is_voting=is_voting, batch=batch, strip_px=strip_px)
    assert [row for strip in plan.strips for row in range(strip.top, strip.bottom)] == list(range(rows))
    assert plan.batch_size <= batch
    for strip in plan.strips:
        centers = range(strip.top - 7, strip.bottom + 8) if is_voting else range(strip.top, strip.bottom)
        expected = {row // plan.batch_row_px for row in centers if 0 <= row < rows}
        assert set(strip.batch_rows) == expected


@pytest.mark.parametrize("index", [0, 3])
def test_a_window_contains_every_patch_of_its_batch(index):
    plan = plan_mapping(Lattice(100, 100, 4, 16), is_voting=True, batch=16, strip_px=50)
    top, bottom = plan.window_rows(index)
    left, right = plan.window_cols(index)
    first, last = index * 16, index * 16 + 15  # the batch's pixels, each of which may be a centre
    assert (top, bottom) == (first - 8, last + 8)
    assert (left, right) == (first - 8, last + 8)
