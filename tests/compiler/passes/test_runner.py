"""Running: verification after each pass, groups that settle, stops, what watchers see."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import Group, Pass, PassError, PassRun, built, run_passes
from hloipu_compiler.passes.algebra.simplify_algebra import SimplifyAlgebra
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UsageError
from tests.support.passes import entry, parsed

TEXT = entry("  p = f32[2] parameter(0)\n  a = f32[2] copy(p)\n  ROOT r = f32[2] negate(a)")


@dataclass(frozen=True)
class Breaking(Pass):
    """Gives the root an operand that stands after it."""

    name: ClassVar[str] = "breaking"

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        *others, root = module.entry.instructions
        wrong = (*others, root._replace(operands=(len(others),)))
        return replace(module, computations=(replace(module.entry, instructions=wrong),)), plan


def test_a_pass_that_breaks_the_module_is_named() -> None:
    with pytest.raises(PassError, match="after the pass breaking") as error:
        run_passes(parsed(TEXT), None, built([Breaking()]))
    assert (error.value.code, error.value.pass_name) == ("E9001", "breaking")
    assert [fault.code for fault in error.value.faults] == ["E0337"]
    run_passes(parsed(TEXT), None, built([Breaking()]), verify_each=False)


def test_a_group_ends_when_nothing_changes() -> None:
    runs: list[PassRun] = []
    run_passes(parsed(TEXT), None, built([Group((SimplifyAlgebra(),), 9)]), watch=runs.append)
    assert [(run.round, run.changed) for run in runs] == [(1, True), (2, False)]
    assert runs[0].before.instruction_count == 3
    assert runs[0].after.instruction_count == 2
    assert all(run.seconds >= 0 for run in runs)


def test_a_group_ends_after_its_rounds() -> None:
    runs: list[PassRun] = []
    pipeline = built([Group((Breaking(),), 4)])
    run_passes(parsed(TEXT), None, pipeline, verify_each=False, watch=runs.append)
    assert [run.round for run in runs] == [1, 2, 3, 4]


def test_stopping_after_a_pass() -> None:
    runs: list[PassRun] = []
    run_passes(parsed(TEXT), None, "front", stop_after="fold-constants", watch=runs.append)
    assert [run.name for run in runs][-1] == "fold-constants"
    assert runs[-1].round == 1
    with pytest.raises(UsageError, match="has no pass 'breaking' to stop after") as error:
        run_passes(parsed(TEXT), None, "front", stop_after="breaking")
    assert error.value.code == "E3135"


def test_the_plan_goes_through() -> None:
    plan = Plan(pinned={"target": "gc200"})
    _, after = run_passes(parsed(TEXT), plan, "front")
    assert after.pinned == {"target": "gc200"}
    assert after.record() == {
        "schema": "hloipu.plan/1", "trip_counts": [], "pinned": {"target": "gc200"},
    }  # fmt: skip
