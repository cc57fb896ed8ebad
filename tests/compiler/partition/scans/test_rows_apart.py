"""Stacks without loops are cut where the stage of their readers changes, and nowhere else."""

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.scans.rows_apart import RowsApart, each_row_apart, rows_apart
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest
from tests.support.pieces import front, stages_of, wrapping_with
from tests.support.stacked_steps import ROWS, UNROLLED, StackedStep


def given(step: StackedStep) -> tuple[Module, Wrapping]:
    module = front(step.text)
    return module, required_wrapping(module, WrappingRequest(1), feeds_rest=True)


def in_rows(module: Module, wrapping: Wrapping, stages: int | None = None) -> RowsApart | None:
    pieces = each_row_apart(module, wrapping)
    if pieces.numbers is None:
        return None
    return rows_apart(module, wrapping, stages_of(pieces, PipelineRequest(stages=stages), {}))


@pytest.mark.parametrize("name", ["scan", "rows", "columns"])
def test_every_row_is_a_piece_where_it_is_to_be_priced(name: str) -> None:
    made = each_row_apart(*given(UNROLLED[name]))
    sizes = {x.sizes for x in made.stacks}
    assert sizes == {(1,) * ROWS}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", ["scan", "rows", "columns"])
def test_rows_of_one_stage_are_one_piece(name: str, stages: int) -> None:
    module, wrapping = given(UNROLLED[name])
    found = in_rows(module, wrapping, stages)
    assert found is not None
    (sizes,) = {x.sizes for x in found.pieces.stacks}
    assert sum(sizes) == ROWS
    assert 1 < len(sizes) <= stages
    for line in found.lines:
        assert line.count("stage") == len(sizes)
    assert set(found.known.values()) == set(range(stages))


def test_a_step_of_one_stage_stays_as_it_is() -> None:
    module, wrapping = given(UNROLLED["rows"])
    assert in_rows(module, wrapping, 1) is None


QKV = """HloModule m

ENTRY e {
  w = f32[4,12] parameter(0)
  x = f32[2,4] parameter(1)
  a = f32[4,4] slice(w), slice={[0:4],[0:4]}
  b = f32[4,4] slice(w), slice={[0:4],[4:8]}
  c = f32[4,4] slice(w), slice={[0:4],[8:12]}
  p = f32[2,4] dot(x, a), STAGE0
  q = f32[2,4] dot(p, b), STAGE0
  s = f32[2,4] dot(q, c), STAGE1
  ROOT r = (f32[2,4]) tuple(s)
}
"""
for _number in "01":
    QKV = QKV.replace(
        f"STAGE{_number}",
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        f'frontend_attributes={{ipu_stage="{_number}"}}',
    )


def test_annotated_stages_cut_too() -> None:
    module = front(QKV)
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=1)
    found = in_rows(module, wrapping)
    assert found is not None
    assert [(x.name, x.axis, x.sizes) for x in found.pieces.stacks] == [("w", 1, (8, 4))]
    assert found.lines == ("  w: rows 0-7 in stage 0, rows 8-11 in stage 1",)


def test_the_first_rows_may_be_a_stage_alone() -> None:
    middle = QKV[QKV.index("  q = ") : QKV.index("  s = ")]
    later = QKV.replace(middle, middle.replace('"0"', '"1"'))
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=1)
    found = in_rows(front(later), wrapping)
    assert found is not None
    assert [x.sizes for x in found.pieces.stacks] == [(4, 8)]
    assert found.lines == ("  w: rows 0-3 in stage 0, rows 4-11 in stage 1",)


def test_data_and_unequal_rows_are_no_stacks() -> None:
    fed = front(QKV)
    wrapping = wrapping_with(feeds=(0, 1), results=1)
    assert in_rows(fed, wrapping) is None
    uneven = QKV.replace("[8:12]", "[7:11]")
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=1)
    assert in_rows(front(uneven), wrapping) is None
