"""The table of passes: rows, what is left out, and when a pass counts as worse."""

from pathlib import Path

from hloipu_compiler.passes.pipeline import Group
from hloipu_compiler.passes.pipelines import PIPELINES
from hloipu_runtime.machine.load import load_machine
from tools.bench.passes import Figures, Row, measured, rows_of, without

SAMPLE = Path(__file__).parents[2] / "hlo_samples" / "newton_while.hlo"


def test_every_pass_of_the_pipelines_has_one_row() -> None:
    rows = list(rows_of())
    names = [name for _, name in rows]
    assert len(set(names)) == len(names)
    wanted = {p.name for key in ("default", "lean") for p in PIPELINES[key].passes()}
    assert set(names) == wanted
    assert ("lean", "recompute-cheap") in rows


def test_a_pass_is_left_out_wherever_it_stands() -> None:
    for name in ("eliminate-dead-code", "simplify-algebra", "fuse-elementwise"):
        left = without(PIPELINES["default"], name)
        assert name not in {p.name for p in left.passes()}
        assert any(isinstance(step, Group) for step in left.steps)


def test_a_row_adds_up_and_tells_worse_from_traded() -> None:
    row = Row("p", "default")
    row.add("a", Figures(110, True, 50, True), Figures(100, True, 50, True))
    assert (row.programs, row.changed, row.worst) == (1, 1, "a")
    assert row.is_worse
    row.add("b", Figures(100, True, 40, True), Figures(100, True, 80, True))
    assert not row.is_worse  # slower in all, and smaller for it
    better = Row("q", "default")
    better.add("a", Figures(90, True, 60, True), Figures(100, True, 50, True))
    assert not better.is_worse
    larger = Row("r", "default")
    larger.add("a", Figures(100, True, 60, True), Figures(100, True, 50, True))
    assert larger.is_worse


def test_a_program_is_measured_with_and_without() -> None:
    rows = {row.name: row for row in measured([SAMPLE], load_machine("gc200"))}
    assert rows["simplify-algebra"].programs + rows["simplify-algebra"].needed == 1
    assert rows["recompute-cheap"].programs == 0  # it fits without
