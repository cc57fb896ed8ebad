"""Every sample, compiled for small and large machines: in all modes, and under the referees."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hloipu.api import compile_verified
from hloipu.check.outputs import Truth, compare_outputs, truth_of
from hloipu.inputs import flat
from hloipu.options.resolve import resolve
from hloipu.xla_cpu.runner import XlaCpu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.profile import Profile
from tests.support.memory_checker import overlaps
from tests.support.program_checker import violations

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
NAMES = sorted(p.stem for p in SAMPLES.glob("*.hlo"))
TARGETS: dict[str, dict[str, Any]] = {
    "tiny": {"target": "tiny"},
    "tiny-7": {"target": "tiny", "set": {"tiles_per_ipu": 7}},
    "gc200": {"target": "gc200"},
}
EVERYWHERE = pytest.mark.parametrize(("sample", "target"), [(s, t) for s in NAMES for t in TARGETS])
ON_FEW_TILES = pytest.mark.parametrize(
    ("sample", "target"), [(s, t) for s in NAMES for t in TARGETS if t != "gc200"]
)
"""The referees follow every element and every byte on every tile."""


@cache
def module_of(sample: str) -> Module:
    module = parse((SAMPLES / f"{sample}.hlo").read_text(encoding="utf-8"))
    verify(module)
    return module


@cache
def program_of(sample: str, target: str) -> CompiledProgram:
    options = resolve("compile", {**TARGETS[target], "over_memory": "allow"}).options
    return compile_verified(module_of(sample), options)


@cache
def wanted_of(sample: str, xla_cpu: XlaCpu) -> tuple[list[Array], list[Array], Truth | None]:
    """Return the leaves of arguments, of the evaluator's results, and what XLA:CPU says of them."""
    module = module_of(sample)
    arguments = random_arguments(module, 7)
    leaves = flat(arguments)
    return leaves, flat(evaluate_everywhere(module, *arguments)), truth_of(xla_cpu, module, leaves)


@EVERYWHERE
@pytest.mark.thinned(8)
def test_both_modes_compute_what_the_graph_means(sample: str, target: str, xla_cpu: XlaCpu) -> None:
    program = program_of(sample, target)
    arguments, wanted, truth = wanted_of(sample, xla_cpu)

    cycles = set()
    for mode in ("functional", "exact"):
        result = program.run(*arguments, mode=mode, poison=True)
        cycles.add(result.cycles)
        assert_adds_up(result.profile)
        assert [x.dtype for x in result.outputs] == [x.dtype for x in wanted]
        reports = compare_outputs(module_of(sample), result.outputs, wanted, truth)
        assert [f"{mode}: {x.said}" for x in reports if not x.agrees] == []
    estimate = program.estimate()
    assert_adds_up(program.profile())
    assert len(cycles) == 1
    assert estimate.total_cycles in (None, *cycles)
    assert (estimate.total_cycles is None) == (sample in DECIDED_BY_DATA)


DECIDED_BY_DATA = {"newton_while", "cond_switch"}


def assert_adds_up(profile: Profile) -> None:
    """Check that totals are the sums of their parts, in every direction."""
    total = profile.lower_bound_cycles
    assert sum(profile.by_bucket.values()) == total
    assert sum(row.cycles for row in profile.steps) == total
    assert sum(row.cycles for row in profile.origins) == total
    for row in profile.by_ipu:
        assert sum(row[1:]) == total
    assert sum(row.assumed_cycles for row in profile.steps) == profile.assumed_cycles


@pytest.mark.thinned(2)
@ON_FEW_TILES
def test_nothing_is_misread_or_missing_and_no_two_live_variables_share_a_byte(
    sample: str, target: str
) -> None:
    program = program_of(sample, target)
    assert violations(program.program, program.machine.chip.tiles_per_ipu) == []
    assert overlaps(program.program, program.memory_plan.addresses, Random(0), 2) == []
