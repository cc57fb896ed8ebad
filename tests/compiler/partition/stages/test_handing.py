"""What positions of a pipeline receive: the least bytes, against every choice tried out."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.partition.stages.handing import Handing, closure
from hloipu_compiler.partition.training.step_phases import FORWARD, Phases
from hloipu_runtime.program.steps import Pipeline, Repeat, inner_steps

TEXT = """HloModule masked
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY step {
  x = f32[8,128] parameter(0)
  zero = f32[] constant(0)
  h = f32[8,128] exponential(x)
  row = f32[8] reduce(h, zero), dimensions={1}, to_apply=sum
  wide = f32[8,128] broadcast(row), dimensions={0}
  half = f16[8,128] convert(wide)
  full = f32[8,128] convert(half)
  sum = f32[8,128] add(full, h)
  below = pred[8,128] compare(sum, h), direction=LT
  picked = f32[8,128] select(below, sum, full)
  late = f32[8,128] tanh(picked)
  more = f32[8,128] multiply(late, sum)
  ROOT y = f32[8,128] tanh(more)
}
"""
LIGHT = ("wide", "half", "full", "sum", "below", "picked", "more")


def handing(readers: str, ipus: tuple[int, ...]) -> Handing:
    """Return a step whose ops named `readers` are in the second place, others in the first."""
    entry = parse(TEXT).entry
    names = [x.name for x in entry.instructions]
    free = [x.opcode == "constant" for x in entry.instructions]
    second = readers.split()
    place = [
        -1 if x.opcode in ("parameter", "constant") else int(x.name in second)
        for x in entry.instructions
    ]
    phase = tuple(FORWARD if at >= 0 else "free" for at in place)
    phases = Phases(phase, (), (), (), (), -1, (), ())
    bodies = [[n for n, at in enumerate(place) if at == number] for number in (0, 1)]
    assert set(second) <= set(names)
    return Handing(entry, phases, free, place, bodies, ipus)


def cost(step: Handing, remade: frozenset[int], ipus: tuple[int, ...]) -> float:
    """Return the bytes that come to the second place, and a share of those made again there."""
    entry = step.entry
    came = closure(entry, step.written_out, (*step.bodies[1], *remade))[1]
    if any(entry.instructions[i].parameter_number >= 0 for i in came):
        return np.inf
    shares = {"broadcast": 0.0, "convert": 1 / 4 if ipus[0] == ipus[1] else 1 / 16}
    other = 1 / 2 if ipus[0] == ipus[1] else 1 / 16
    found = float(sum(byte_count(entry.instructions[i].shape) for i in came))
    for i in remade:
        x = entry.instructions[i]
        found += shares.get(x.opcode, other) * byte_count(x.shape)
    return found


@pytest.mark.parametrize("ipus", [(0, 0), (0, 1)])
@pytest.mark.parametrize(
    "readers", ["y", "late more y", "picked late more y", "sum below picked more y"]
)
def test_no_choice_of_what_is_made_again_costs_less(readers: str, ipus: tuple[int, ...]) -> None:
    step = handing(readers, ipus)
    at = step.entry.position
    light = [at[name] for name in LIGHT if name not in readers.split()]
    least = min(
        cost(step, frozenset(some), ipus)
        for count in range(len(light) + 1)
        for some in combinations(light, count)
    )
    first, second = step.remade()
    assert not first
    assert cost(step, second, ipus) == least


def test_a_broadcast_goes_as_what_it_is_made_of() -> None:
    step = handing("sum below picked late more y", (0, 1))
    live = step.live(step.remade(), [step.entry.root])
    came = closure(step.entry, step.written_out, live[1][0])[1]
    assert {step.entry.instructions[i].name for i in came} == {"h", "row"}
    assert {step.entry.instructions[i].name for i in live[0][1]} == {"h", "row"}
    assert "half" not in {step.entry.instructions[i].name for i in live[0][0]}


@pytest.mark.parametrize(
    ("ipus", "passed"), [((0, 1, 1), True), ((0, 1, 0), False), ((0, 0, 0), False)]
)
def test_what_crosses_links_does_so_once(ipus: tuple[int, ...], passed: bool) -> None:
    step = handing("y", ipus)
    h = step.entry.position["h"]
    relays = step.relays([[], [h], [h]])
    assert relays == ({(2, h): 1} if passed else {})


@pytest.mark.parametrize(("stages", "passed"), [((0, 1, 1), False), ((0, 1, 2), True)])
def test_branches_of_one_stage_hand_each_other_nothing_on(
    stages: tuple[int, ...], passed: bool
) -> None:
    step = handing("y", (0, 1, 1))
    step = replace(step, stages=[("forward", stage) for stage in stages])
    h = step.entry.position["h"]
    assert bool(step.relays([[], [h], [h]])) == passed


def test_what_is_passed_on_is_a_copy() -> None:
    """The place that a value comes to takes the next micro-batch's while the first is sent on."""
    program = hloipu.compile(
        Path("hlo_samples/mnist_train_step.hlo"), cache=False, stages=4, micro_batches=4, loop=1
    ).program
    (loop,) = (x for x in program.body.steps if isinstance(x, Repeat))
    (pipeline,) = (x for x in inner_steps(loop.body) if isinstance(x, Pipeline))
    ipu = [x.ipu for x in program.variables]
    links = [x for x in pipeline.channels if ipu[x.source] != ipu[x.destination]]
    passed = [x for x in pipeline.channels if x.value in {y.value for y in links}]
    assert len(passed) > len(links)
    assert len({(x.value, ipu[x.destination]) for x in links}) == len(links)
    come = {x.destination for x in pipeline.channels} | {
        place for x in pipeline.channels for place in x.places
    }
    assert come.isdisjoint(x.source for x in pipeline.channels)
