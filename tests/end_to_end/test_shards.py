"""Training steps on several IPUs without stages: annotated at random, and in blocks by cost."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import hloipu
from hloipu_compiler.partition.placement.request import ShardingError, rounded_up
from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.memory.remote_parts import RemoteCategory, remote_parts
from hloipu_runtime.program.steps import Parallel
from tests.support.annotated_texts import (
    annotated,
    crossings,
    ipus_of_micro_batches,
    ipus_stated,
    pipelines,
)
from tests.support.memory_checker import overlaps
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled
from tests.support.training_steps import STEPS

MODELS = ("mlp", "cnn", "transformer", "lstm", "residual")
ANNOTATED = [(f"{m}_{o}", seed) for m, o, seed in product(MODELS, ("momentum", "adam"), (0, 1))]
BLOCKS = [
    Cut(f"{m}_{o}", 1, "grouped", 1, replicas=r)
    for m, (o, r) in zip(
        MODELS * 2, [("sgd", 1), ("adamw_clipped", 2), ("adam", 4)] * 4, strict=False
    )
]


CUT = [
    Cut("mlp_momentum", 1, "sequential/2", 4, "sum", away="all", shards=2, share=1),
    Cut("mlp_adam", 1, "grouped", 3, "running_mean", replicas=2, shards=3, share=1, io_tiles=1),
    Cut("residual_adam", 1, "grouped", 2, replicas=2, shard_optimizer=True, shards=2, share=1),
    Cut("lstm_sgd", 1, "grouped", 2, offload="on", shards=2, share=0.5),
]


def sharded(cut: Cut, shards: int | str, **options: Any) -> CompiledProgram:
    return compiled(cut, **{"stages": None, "shards": shards, **options})


def trained(text: str, name: str, mode: Mode) -> tuple[CompiledProgram, list[Any]]:
    step = STEPS[name]
    first = step.state_count
    program = hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, loop=2,
        feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"],
    )  # fmt: skip
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    batches = iter([step.batch(0), step.batch(1)])
    with program.session(state=state, infeeds={"data": batches}, mode=mode) as session:
        session.run(2)
        losses = [np.asarray(x.element) for x in session.stream("loss").drain()]
        return program, losses + list(session.state().values())


def evaluated(name: str) -> list[Any]:
    """Return losses and state after two steps, op by op."""
    step = STEPS[name]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    losses = []
    for seed in (0, 1):
        *state, loss = hloipu.evaluate(step.text, *state, *step.batch(seed))
        losses.append(loss)
    return losses + state


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("name", "seed"), ANNOTATED)
def test_annotated_steps_train_as_plain_ones_do(name: str, seed: int) -> None:
    draw = Random(f"{name}{seed}")
    text = annotated(STEPS[name].text, draw, draw.randint(2, 4), draw.choice((0.1, 0.5, 1)))
    program, found = trained(text, name, "functional" if seed else "exact")
    assert program.program.ipus > 1
    for a, b in zip(found, evaluated(name), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def loss(weights: list[Any], x: Any, y: Any) -> Any:
    """Return the loss of two layers, on an IPU each."""
    with set_xla_metadata(ipu_shard="0"):
        hidden = jax.numpy.tanh(x @ weights[0])
    with set_xla_metadata(ipu_shard="1"):
        return jax.numpy.mean((hidden @ weights[1] - y) ** 2)


@pytest.mark.parametrize("io_tiles", [0, 1])
@pytest.mark.parametrize("outfeed", ["loss=2", "loss:sum=2"])
def test_state_and_gradients_of_jax_s_own_annotations_lie_where_they_are_read(
    io_tiles: int, outfeed: str
) -> None:
    def step(weights: list[Any], x: Any, y: Any) -> Any:
        found, slopes = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.25 * slope for w, slope in zip(weights, slopes, strict=True)], found

    draw = np.random.default_rng(0)
    weights = [draw.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 4))]
    data = [[draw.normal(size=(5, n)).astype(np.float32) for n in (8, 4)] for _ in range(3)]
    lowered = jax.jit(step, donate_argnums=0).lower(weights, *data[0])
    program = hloipu.compile(
        lowered.compiler_ir("hlo").as_hlo_text(), target="tiny", over_memory="allow", cache=False,
        loop=3, feed={"data": (2, 3)}, outfeed=[outfeed], io_tiles=io_tiles,
    )  # fmt: skip
    ports = program.program.state
    assert [program.program.variables[port.variable].ipu for port in ports] == [0, 1]
    with program.session(state=weights, infeeds={"data": iter(data)}, mode="exact") as session:
        session.run(3)
        told = [np.asarray(x.element) for x in session.stream("loss").drain()]
        found = list(session.state().values())
    losses = []
    plain = jax.jit(step)
    for x, y in data:
        weights, value = plain(weights, x, y)
        losses.append(float(value))
    wanted = [sum(losses)] if "sum" in outfeed else losses
    np.testing.assert_allclose(np.ravel(told), wanted, rtol=2e-5)
    for a, b in zip(found, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.thinned(14)
@pytest.mark.parametrize("shards", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", BLOCKS, ids=str)
def test_blocks_train_as_gradients_and_updates_taken_apart_do(cut: Cut, shards: int) -> None:
    program = sharded(cut, shards)
    assert program.program.ipus == {1: 1, 2: 2, 3: 4, 4: 4}[shards]
    assert_equal_to_jax(cut, program)


def test_tiles_by_themselves_come_to_the_same() -> None:
    cut = Cut("residual_momentum", 1, "grouped", 1, replicas=2)
    assert_equal_to_jax(cut, sharded(cut, 2), "exact")


def test_no_two_live_variables_share_a_byte() -> None:
    program = sharded(Cut("cnn_adam", 1, "grouped", 1), 4)
    assert overlaps(program.program, program.memory_plan.addresses, Random(0), 2) == []


def test_a_block_has_its_weights_and_what_updates_them() -> None:
    program = sharded(Cut("mlp_adam", 1, "grouped", 1), 2).program
    names = {port.name: program.variables[port.variable].ipu for port in program.state}
    assert set(names.values()) == {0, 1}
    crossing = crossings(program)
    assert len(crossing) == len(set(crossing)), "each value goes to an IPU once"
    shapes = {program.variables[port.variable].shape for port in program.state}
    moved = [program.values[value].shape for value, _ in crossing]
    assert not [shape for shape in moved if len(shape) == 2 and shape in shapes], "no weight does"


def test_replicas_fill_a_system_and_shards_divide_it() -> None:
    cut = Cut("mlp_sgd", 1, "grouped", 1)
    program = sharded(cut, 2, ipus=8, replicas=None).program
    assert (program.ipus, program.replicas) == (2, 4)
    with pytest.raises(ShardingError, match="6 IPUs were asked for, and a replica takes 4") as told:
        sharded(cut, 3, ipus=6, replicas=None)
    assert told.value.code == "E0551"


@pytest.mark.large
def test_as_few_shards_are_taken_as_have_room() -> None:
    cut = Cut("transformer_adam", 1, "grouped", 1)
    plenty = sharded(cut, "auto", ipus=1, set={"bytes_per_tile": 2**20, "executable_bytes": 2**20})
    assert plenty.program.ipus == 1
    little = {"bytes_per_tile": 45 * 2**10}
    scarce = sharded(cut, "auto", ipus=1, set=little)
    assert not sharded(cut, 1, set=little).fits
    assert scarce.fits
    assert scarce.program.ipus == 2
    assert_equal_to_jax(cut, scarce)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cut", CUT, ids=str)
def test_cut_steps_train_on_the_ipus_that_their_ops_name(cut: Cut) -> None:
    program = compiled(cut)
    assert program.program.replicas == cut.replicas
    assert program.program.ipus == rounded_up(cut.shards)
    stated, there = ipus_stated(cut.text), ipus_of_micro_batches(program.program)
    for op in stated.keys() & there.keys():
        assert there[op] == {stated[op]}, f"{op} runs where it says"
    assert set().union(*there.values()) >= set(range(cut.shards)), "micro-batches are on all IPUs"
    assert_equal_to_jax(cut, program, "exact" if cut.step.startswith("mlp") else "functional")


def test_replicas_of_a_cut_step_are_groups_of_ipus_with_accumulators_and_state_on_each() -> None:
    cut = Cut("mlp_adam", 1, "grouped", 2, replicas=4, shards=2, share=1, offload="on")
    program = compiled(cut, replicas=None, ipus=8)
    assert (program.program.ipus, program.program.replicas) == (2, 4)
    accumulators = {x.ipu for x in program.program.variables if x.name.startswith("accumulator.")}
    assert accumulators == {0, 1}
    remote = remote_parts(program.program)
    assert all(part[RemoteCategory.STATE] for part in remote), "momenta lie beside both IPUs"
    lines = program.options["cut"]
    assert "  each on 2 IPUs" in lines
    assert any(
        line.startswith("4 replicas of 2 IPUs: gradients combined by mean") for line in lines
    )
    assert_equal_to_jax(cut, program)


def test_ipus_work_at_the_same_time_in_a_micro_batch() -> None:
    cut = Cut("mlp_sgd", 1, "grouped", 2, shards=2, share=1)
    (pipeline,) = pipelines(compiled(cut).program)
    (stage,) = pipeline.stages
    assert any(isinstance(step, Parallel) for step in stage.body.steps)


@pytest.mark.parametrize("shards", [2, "auto"])
def test_blocks_go_with_micro_batches(shards: int | str) -> None:
    cut = Cut("residual_adam", 1, "grouped", 2, replicas=2, shard_optimizer=True)
    program = sharded(cut, shards)
    assert program.program.ipus == (2 if shards == 2 else 1)
    assert any("state lie in parts" in line for line in program.options["cut"])
    assert_equal_to_jax(cut, program)


def test_stages_go_with_annotations_that_say_the_same_alone() -> None:
    def step(weights: list[Any], x: Any, y: Any, *, shards: Sequence[int]) -> Any:
        def loss(weights: list[Any]) -> Any:
            with set_xla_metadata(ipu_stage="0", ipu_shard=str(shards[0])):
                hidden = jax.numpy.tanh(x @ weights[0])
            with set_xla_metadata(ipu_stage="1", ipu_shard=str(shards[1])):
                return jax.numpy.mean((hidden @ weights[1] - y) ** 2)

        found, slopes = jax.value_and_grad(loss)(weights)
        return [w - 0.25 * slope for w, slope in zip(weights, slopes, strict=True)], found

    def made(*shards: int) -> CompiledProgram:
        *weights, x, y = (np.zeros(s, np.float32) for s in ((8, 16), (16, 4), (5, 8), (5, 4)))
        lowered = jax.jit(partial(step, shards=shards), donate_argnums=0).lower(weights, x, y)
        return hloipu.compile(
            lowered.compiler_ir("hlo").as_hlo_text(), target="tiny", over_memory="allow",
            cache=False, feed={"data": (2, 3)}, outfeed=["loss=2"], micro_batches=2,
        )  # fmt: skip

    assert made(0, 1).program.ipus == 2
    with pytest.raises(HloipuError, match="the stage that has it is on IPU 0") as told:
        made(1, 0)
    assert told.value.code == "E0553"


def test_shards_are_refused_with_stages_and_where_annotations_say_others() -> None:
    cut = Cut("mlp_sgd", 1, "grouped", 1)
    for changed in ({"stages": 2}, {"device_map": (0,)}):
        with pytest.raises(HloipuError, match="shards were asked for, and stages") as told:
            sharded(cut, 2, **changed)
        assert told.value.code == "E0553"
    text = annotated(STEPS["mlp_sgd"].text, Random(0), 2, 1)
    kinds: tuple[Any, ...] = (
        {"stages": 2},
        {"stages": 2, "device_map": (1, 0), "micro_batches": 2},
    )
    for options in kinds:
        with pytest.raises(HloipuError, match="annotated with IPU") as told:
            hloipu.compile(text, target="tiny", cache=False, over_memory="allow", **options)
        assert told.value.code == "E0553"
    kinds = ({}, {"shards": 2})
    for options in kinds:
        with pytest.raises(HloipuError, match="stages on one IPU each") as told:
            hloipu.compile(
                text if not options else STEPS["mlp_sgd"].text, target="tiny", cache=False,
                plan="auto", ipus=4, **options,
            )  # fmt: skip
        assert told.value.code == "E0565"
    kinds = ({}, {"micro_batches": 2})
    for cuts in kinds:
        with pytest.raises(HloipuError) as told:
            hloipu.compile(text, target="tiny", cache=False, shards=4, **cuts)
        assert told.value.code == "E0550"
    with pytest.raises(HloipuError) as told:
        hloipu.compile(
            "HloModule m\nENTRY e { p = f32[2]{0} parameter(0)\n ROOT n = f32[2]{0} negate(p) }",
            target="tiny", cache=False, shards=4,
        )  # fmt: skip
    assert told.value.code == "E0552"
