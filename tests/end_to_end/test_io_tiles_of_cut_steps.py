"""Cut steps with tiles set apart for queues: the same values, and buffers alone on these tiles."""

from dataclasses import replace
from random import Random
from typing import Any

import jax
import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from hloipu_runtime.program_io.text.printer import print_program
from tests.support import concurrent_trials
from tests.support.io_tile_steps import CUTS, UPDATES, built, normed
from tests.support.memory_checker import overlaps
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled
from tests.support.program_reader.parser import parse_program
from tests.support.training_steps import STEPS


def of_as_many(cut: Cut, **options: Any) -> CompiledProgram:
    """Compile a step as it is without tiles set apart, on as many tiles as are left otherwise."""
    return compiled(replace(cut, offload="off"), set=(("chip.tiles_per_ipu", "3"),), **options)


def trained(program: CompiledProgram, cut: Cut, mode: Mode) -> tuple[list[Any], int]:
    """Return state and losses after two runs, and the cycles."""
    step = STEPS[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    count = 2 * UPDATES * cut.micro_batches * cut.replicas
    batches = iter([step.batch(n) for n in range(count)])
    with program.session(state=state, infeeds={"data": batches}, mode=mode, poison=True) as session:
        for _ in range(2):
            session.run(UPDATES)
        losses = [np.asarray(x.element) for x in session.stream("loss").drain()]
        found = [x for n in range(cut.replicas) for x in session.state(n).values()]
        return [*found, *losses], session.cycles


@pytest.mark.thinned(5)
@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize(
    "cut", [*CUTS[:3], Cut("mlp_adam", 1, "grouped", 1, replicas=2, loop=UPDATES)], ids=str
)
def test_values_are_the_same_bit_by_bit(cut: Cut, mode: Mode) -> None:
    program = built(cut)
    found, cycles = trained(program, cut, mode)
    wanted, _ = trained(of_as_many(cut), cut, mode)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert cycles == 2 * (program.estimate().total_cycles or 0)


def test_values_are_those_of_jax() -> None:
    cut = Cut("mlp_adam", 2, "grouped", 3, io_tiles=1, replicas=2)
    assert_equal_to_jax(cut, compiled(cut), "exact")


def test_branches_at_once_have_queues_of_their_own() -> None:
    cut = concurrent_trials.Concurrent("added")
    program = concurrent_trials.compiled(cut, io_tiles=1)
    concurrent_trials.assert_equal_to_jax(cut, program)
    profile = program.profile()
    for row in profile.by_ipu:
        assert row.idle >= 0
        assert sum(row[1:]) == program.estimate().total_cycles


@pytest.mark.parametrize("cut", CUTS[1:3], ids=str)
def test_buffers_alone_lie_on_tiles_set_apart(cut: Cut) -> None:
    made = built(cut)
    program = made.program
    verify(program, 4)
    assert overlaps(program, made.memory_plan.addresses, Random(0), 2) == []
    buffers = [v for v in program.variables if v.role is Role.BUFFER]
    assert len(buffers) == 3
    at_once = sum(v.bytes_per_tile for v in buffers)
    assert made.memory.to_json()["parts"]["parameters"] >= at_once > 0
    for variable in program.variables:
        tiles = variable.mapping.tiles
        last = tiles.first + sum(
            (n - 1) * step for n, step in zip(tiles.extents, tiles.strides, strict=True)
        )
        assert variable.role is Role.REMOTE or (last == 3) == (variable.role is Role.BUFFER)
    text = print_program(program, constants=True)
    assert print_program(parse_program(text), constants=True) == text
    stored = encode_program(program)
    assert decode_program(stored.meta, stored.arrays) == program


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_what_updates_give_out_is_theirs(mode: Mode) -> None:
    w = np.arange(32.0).reshape(8, 4)
    x = np.random.default_rng(3).integers(-2, 3, (3 * UPDATES, 6, 8)).astype(np.float32)
    losses, norms = [], []
    program = normed()
    state = [w.astype(np.float32)]
    with program.session(state=state, infeeds={"data": x}, mode=mode, poison=True) as session:
        session.run(UPDATES)
        found = {n: [a.element for a in session.stream(n).drain()] for n in ("loss", "norm")}
        (new,) = session.state().values()
    for first in range(0, len(x), 3):
        batches = x[first : first + 3].astype(np.float64)
        y = batches @ w
        losses += [(a * a).sum() for a in y]
        g = sum(b.T @ (2 * a) for a, b in zip(y, batches, strict=True)) / 3
        norms.append((g * g).sum())
        w = w - g / 1024
    np.testing.assert_allclose(np.ravel(found["loss"]), losses, 1e-5)
    np.testing.assert_allclose(np.ravel(found["norm"]), norms, 1e-5)
    np.testing.assert_allclose(new, w, 1e-5, 1e-5)
