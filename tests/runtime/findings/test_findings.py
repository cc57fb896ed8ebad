"""Findings on programs put together by hand: each kind with the numbers of its profile."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.findings.find import findings_of
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import plan_memory
from hloipu_runtime.memory.report import memory_report
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import (
    ComputeSet,
    Operand,
    Repeat,
    Sequence,
    StreamIn,
    Sync,
    VertexGroup,
)
from hloipu_runtime.report.build import About, profile_of_estimate
from hloipu_runtime.report.change import Finding
from tests.support.pipelined_programs import PipelineMaker
from tests.support.priced_programs import Maker, Toil, everywhere, row, rows

UNIT = load_machine("unit", {"tiles_per_ipu": "16"})
TINY = load_machine("tiny")


def found(program: Program, machine: Machine = TINY) -> dict[str, Finding]:
    """Return the findings on a program by kind, none of it proved."""
    costs = step_charges(program, machine)
    memory = memory_report(plan_memory(program, machine))
    about = About({"a.1": "model.py:3"}, memory=memory.to_json())
    profile = profile_of_estimate(costs, estimate(program, machine, costs=costs), about)
    kinds = findings_of(Facts(program, machine, profile, memory))
    assert len({x.kind for x in kinds}) == len(kinds)
    return {x.kind: x for x in kinds}


def test_few_tiles_save_what_the_others_could_have_done() -> None:
    make = Maker()
    x = make.variable((4000,), everywhere((4000,), row(1)))
    y = make.variable((64,), rows((64,), row(16)))
    finding = found(make.program(make.toil(x, "a.1"), make.toil(y, "b.2")), UNIT)["few-tiles"]
    assert (finding.name, finding.source) == ("a.1", "model.py:3")
    assert finding.evidence == {"compute_cycles": 4000, "tiles": 1, "of_tiles": 16}
    assert finding.gain_cycles == 4000 * 15 // 16
    assert "4,000 cycles on 1 of 16 tiles" in finding.statement


def test_several_of_a_kind_are_one_finding() -> None:
    make = Maker()
    ones = [make.variable((1000 * n,), everywhere((1000 * n,), row(1))) for n in (1, 3, 2)]
    finding = found(make.program(*(make.toil(v, f"op.{v}") for v in ones)), UNIT)["few-tiles"]
    assert finding.name == "op.1"
    assert finding.gain_cycles == sum(round(c * 15 / 16) for c in (1000, 3000, 2000))
    assert [x["name"] for x in finding.evidence["dearest"]] == ["op.1", "op.2", "op.0"]
    assert finding.statement.endswith("(and 2 more like it)")


def test_work_spread_over_the_tiles_is_no_finding() -> None:
    make = Maker()
    x = make.variable((1600,), rows((1600,), row(16)))
    assert "few-tiles" not in found(make.program(make.toil(x, "a.1")), UNIT)


def test_an_operand_that_everyone_takes_is_exchange_and_a_value_moved_is_a_conversion() -> None:
    make = Maker()
    x = make.variable((4096,), rows((4096,), row(4)))
    everyone = make.variable((4096,), everywhere((4096,), row(4)))
    other = make.variable((4096,), rows((4096,), row(2, stride=2)))
    kinds = found(
        make.program(
            make.exchange((x, everyone), name="a.1"),
            make.exchange((x, other), name="b.2"),
        )
    )
    assert kinds["exchange-bound"].name == "a.1"
    assert kinds["layout-conversion"].name == "b.2"
    for finding in kinds.values():
        assert finding.gain_cycles > 0
    assert kinds["exchange-bound"].evidence["compute_cycles"] == 0


def test_a_program_that_waits_for_the_host() -> None:
    make = Maker()
    x = make.variable((4096,), rows((4096,), row(4)))
    program = make.program(Sync(), StreamIn("x", x, x), make.toil(x, "a.1"))
    finding = found(program)["host-bound"]
    host = step_charges(program, TINY).steps[1].spent.host.cycles
    assert finding.gain_cycles == finding.evidence["host_cycles"] == host
    assert finding.evidence["bytes_in"] == 4096 * 4
    assert dict(finding.settings) == {"loop": 100}


def test_a_program_that_waits_for_remote_memory() -> None:
    make = PipelineMaker(2, 4, 6, ipus=(0, 0), offloaded=frozenset(("activations", "weights")))
    program = make.program()
    finding = found(program)["remote-bound"]
    steps = step_charges(program, TINY).steps
    kinds = {step.kind for step in steps if step.spent.remote.cycles}
    assert kinds == {"remote in", "remote out"}
    assert finding.gain_cycles == finding.evidence["remote_cycles"] > 0
    assert not finding.is_of_host
    assert dict(finding.settings) == {"offload": "off"}


def test_steps_shorter_than_the_barrier_before_them() -> None:
    make = Maker()
    x = make.variable((8,), rows((8,), row(4)))
    steps = [step for n in range(10) for step in (Sync(), make.toil(x, f"op.{n}"))]
    finding = found(make.program(*steps))["small-steps"]
    assert finding.evidence["steps"] == 10
    assert finding.gain_cycles == 10 * finding.evidence["cycles_of_a_barrier"]
    assert "small-steps" not in found(make.program(Sync(), make.toil(x, "a.1")))


def test_a_loop_whose_turns_compute_little() -> None:
    make = Maker()
    x = make.variable((8,), rows((8,), row(4)))
    turn = Sequence((Sync(), make.toil(x, "a.1")))
    finding = found(make.program(Repeat(50, turn, (), "loop.4")))["small-turns"]
    assert (finding.name, finding.evidence["turns"]) == ("loop.4", 50)
    assert finding.evidence["compute_cycles"] == 50 * 2
    assert finding.gain_cycles == finding.evidence["cycles"] - 100
    large = make.variable((80_000,), rows((80_000,), row(4)))
    busy = Sequence((Sync(), make.toil(large, "a.1")))
    assert "small-turns" not in found(make.program(Repeat(50, busy, (), "loop.4")))


def test_what_the_host_takes_is_no_part_of_a_loop_s_iterations() -> None:
    make = Maker()
    large = make.variable((80_000,), rows((80_000,), row(4)))
    fed = Sequence((Sync(), StreamIn("x", large, large), make.toil(large, "a.1")))
    program = make.program(Repeat(50, fed, (), "loop.4"))
    assert "small-turns" not in found(program)
    small = make.variable((8,), rows((8,), row(4)))
    inner = Repeat(50, Sequence((Sync(), make.toil(small, "b.1"))), (), "loop.5")
    nested = make.program(Repeat(4, Sequence((inner,)), (), "loop.6"))
    # Cycles of the inner loop are the outer one's too: both together save no more than there are.
    assert found(nested)["small-turns"].gain_cycles <= estimate(nested, TINY).lower_bound_cycles


def test_what_is_computed_twice_of_the_same_values() -> None:
    make = Maker()
    x, y, z = (make.variable((4000,), rows((4000,), row(4))) for _ in range(3))
    program = make.program(
        ComputeSet((make.group((x,), y, "a.1"),)), ComputeSet((make.group((x,), z, "b.2"),))
    )
    finding = found(program)["repeated-work"]
    assert (finding.name, finding.gain_cycles) == ("a.1", 1000)
    assert dict(finding.settings) == {"recompute": "none"}
    other = make.program(
        ComputeSet((make.group((x,), y, "a.1"),)), ComputeSet((make.group((y,), z, "b.2"),))
    )
    assert "repeated-work" not in found(other)


@dataclass(frozen=True)
class Product(Toil):
    """Takes two cycles for each element of f32 and one for others."""

    name: ClassVar[str] = "dot"

    def work(self, machine: Machine, operands: Items[Tensor], results: Items[Tensor]) -> TileWork:
        cycles = results[0].elements * (2 if operands[0].element_type == "f32" else 1)
        return TileWork(cycles, 0)


def test_wide_products_ask_the_codelet_what_f16_takes() -> None:
    make = Maker()
    x, y = (make.variable((4000,), rows((4000,), row(4))) for _ in range(2))
    spans, tiles = make.variables[x].mapping.spans, make.variables[x].mapping.tiles
    group = VertexGroup(
        Product(), tiles, (Operand(x, spans),), (Operand(y, spans),), (x,), (y,), "a.1"
    )
    finding = found(make.program(ComputeSet((group,))))["wide-product"]
    assert finding.evidence == {"f32_cycles": 2000, "f16_cycles": 1000, "exchange_cycles": 0}
    assert finding.gain_cycles == 1000
    assert "narrow-floats" in dict(finding.settings)["passes"]


@dataclass(frozen=True)
class Picking(Toil):
    """Goes through indices."""

    name: ClassVar[str] = "gather"


def test_what_runs_beside_an_op_is_not_its_own() -> None:
    make = Maker()
    many, few = (make.variable((n,), rows((n,), row(4))) for n in (4000, 400))

    def kinds(picks: int, computes: int) -> dict[str, Finding]:
        picking = replace(make.group((), picks, "a.1"), codelet=Picking(0))
        return found(make.program(ComputeSet((picking, make.group((), computes, "b.2")))))

    assert kinds(many, few)["index-bound"].name == "a.1"
    assert "index-bound" not in kinds(few, many)


@pytest.mark.parametrize(
    ("kind", "narrow"),
    [("f64", "use f32 "), ("s64", "use int32 "), ("c128", "use c64 "), ("c64", "as f32")],
)
def test_computing_on_what_the_chip_has_not(kind: str, narrow: str) -> None:
    """The cure is a type of fewer bits; c64 is wide by its two parts, which are f32 already."""
    make = Maker()
    x = make.variable((4000,), rows((4000,), row(4)), kind)
    y = make.variable((4000,), rows((4000,), row(4)), kind)
    finding = found(make.program(ComputeSet((make.group((x,), y, "a.1"),))))["emulated-type"]
    assert finding.evidence == {"cycles": 1000, "element_type": kind}
    assert narrow in finding.cure
    assert ("x64" in finding.cure) == (kind != "c64")


def test_a_tile_far_above_the_mean() -> None:
    make = Maker()
    x = make.variable((10_000,), everywhere((10_000,), row(1)))
    finding = found(make.program(make.toil(x, "a.1")))["uneven-memory"]
    assert finding.evidence["peak_bytes"] >= 40_000
    assert finding.gain_bytes == pytest.approx(0.75 * finding.evidence["peak_bytes"], rel=0.1)


def test_what_is_not_enough_comes_before_what_is_slow() -> None:
    make = Maker()
    x = make.variable((100_000,), everywhere((100_000,), row(1)))
    costs = step_charges(make.program(make.toil(x, "a.1")), TINY)
    kinds = list(found(make.program(make.toil(x, "a.1"))))
    assert kinds[0] in ("uneven-memory", "one-tile")
    assert costs.steps[0].one_tile_bytes > 64 * 1024


def test_constants_that_fill_tiles() -> None:
    make = Maker()
    x = make.variable((16_000,), rows((16_000,), row(4)))
    make.variables[x] = replace(make.variables[x], role=Role.CONSTANT)
    program = make.program(make.toil(make.variable((4,), rows((4,), row(4))), "a.1"))
    program.constants[x] = (x, np.zeros(16_000, np.float32))
    finding = found(program)["large-constants"]
    assert (finding.name, finding.gain_bytes) == (f"v{x}", 16_000)


def test_a_program_of_nothing_has_no_findings() -> None:
    assert found(Maker().program()) == {}


def test_records_are_plain_data() -> None:
    make = Maker()
    x = make.variable((4000,), everywhere((4000,), row(1)))
    finding = found(make.program(make.toil(x, "a.1")), UNIT)["few-tiles"]
    record = finding.record()
    assert record["evidence"]["compute_cycles"] == 4000
    assert record["settings"] == {}
    assert record["measured"] is None
