"""Modules with sharding annotations run on all their devices; users see whole arrays."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram, load
from hloipu_runtime.errors import HloipuError, MismatchError
from hloipu_runtime.program.blocks import Blocks
from tests.support.arrays import Array
from tests.support.command_line import run
from tests.support.comparing import assert_close
from tests.support.ragged import drawn_members, ragged_results

pytest.importorskip("jax")
import jax
from jax.sharding import PartitionSpec as P

from tests.support.sharded_steps import (
    BATCHES,
    PROGRAMS,
    STEPS,
    Sharded,
    loss,
    scanned_training,
    trained,
    training,
)

MODES = ("functional", "exact")


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_one_device(name: str) -> None:
    program = PROGRAMS[name]
    compiled, expected = hloipu.compile(program.text), program.results()
    assert compiled.program.participants == 8
    assert [x.shape for x in compiled.inputs] == [x.shape for x in program.leaves]
    for mode in MODES:
        found = compiled.run(*program.leaves, mode=mode, poison=mode == "exact")
        assert_close(found.outputs, expected)
        assert len(found.everyone) == 1


@pytest.fixture(scope="module")
def step() -> Sharded:
    """A training step."""
    return training()


@pytest.fixture(scope="module")
def loop(step: Sharded) -> CompiledProgram:
    """It, in a loop on the device."""
    return hloipu.compile(step.text, loop=2, feed={"data": (10, 11)}, outfeed=("loss",))


def state_of(step: Sharded) -> list[Array]:
    return step.leaves[:10]


@pytest.mark.parametrize("mode", MODES)
def test_a_session_trains_as_on_one_device(
    step: Sharded, loop: CompiledProgram, mode: Any, tmp_path: Path
) -> None:
    expected, losses = trained(step)
    given: dict[str, Any] = {"infeeds": {"data": BATCHES}, "mode": mode}
    with loop.session(state=state_of(step), **given) as session:
        session.run(2)
        session.save_state(tmp_path / "half")
        session.run(2)
        assert_close([x[-1] for x in session.stream("loss").drain()], np.array(losses, np.float32))
        assert_close([*session.state().values()], expected)
    with loop.session(**given) as session:
        session.load_state(tmp_path / "half")
        session.run(2)
        assert_close([*session.state().values()], expected)
    whole = hloipu.compile(
        step.text, loop=2, feed={"data": (10, 11)}, outfeed=("loss",), partition="off"
    )
    with whole.session(**given) as session:  # a checkpoint has whole arrays
        session.load_state(tmp_path / "half")
        session.run(2)
        assert_close([*session.state().values()], expected)


CUTS: dict[str, dict[str, Any]] = {
    "micro-batches": {"micro_batches": 2},
    "stages": {"stages": 2, "micro_batches": 2},
    "recomputation": {"stages": 2, "micro_batches": 2, "recompute": "full"},
    "state in remote buffers": {"micro_batches": 2, "offload": "on"},
    "shards": {"micro_batches": 2, "shards": 2},
    "a plan": {"micro_batches": 2, "plan": "auto", "ipus": 16, "replicas": 1},
    "replicas": {"loop": 1, "replicas": 2},
    "all of it": {"stages": 2, "replicas": 2, "shard_optimizer": True},
}
"""Each takes two batches an update."""


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.thinned(2)
def test_divided_steps_are_cut(step: Sharded, cut: str, tmp_path: Path) -> None:
    program = hloipu.compile(step.text, feed={"data": (10, 11)}, outfeed=("loss",), **CUTS[cut])
    assert program.program.partitions == 8
    expected = trained(step, 2, micro_batches=2)[0]
    for mode in MODES if program.program.ipus > 1 else MODES[:1]:
        given: Any = {"infeeds": {"data": BATCHES}, "mode": mode}
        with program.session(state=state_of(step), **given) as session:
            session.run(2)
            assert_close([*session.state().values()], expected)
            session.save_state(tmp_path / "end")
        with program.session(**given) as session:
            session.load_state(tmp_path / "end")
            last = program.program.replicas - 1
            assert_close([*session.state(last).values()], expected)


@pytest.mark.parametrize("cut", ["micro-batches", "replicas"])
def test_gradients_in_blocks_of_weights_that_are_whole(step: Sharded, cut: str) -> None:
    """New values come out of all-gathers, which are of the update."""

    def descended(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    weights, (x, y), columns = step.arguments[0]["p"], BATCHES, P(None, "model")
    whole = Sharded(descended, (weights, x[0], y[0]), (P(), columns, columns), donated=(0,))
    program = hloipu.compile(whole.text, feed={"data": (3, 4)}, **CUTS[cut])
    grads = [jax.grad(loss)(weights, x[n], y[n]) for n in (0, 1)]
    expected = jax.tree.map(lambda w, g, h: w - 0.05 * (g + h), weights, *grads)
    given: Any = {"infeeds": {"data": tuple(a[:2] for a in BATCHES)}, "mode": "functional"}
    with program.session(state=whole.leaves[:3], **given) as session:
        session.run(1)
        assert_close([*session.state().values()], jax.tree.leaves(expected))


def test_stages_share_the_layers_of_divided_arrays(tmp_path: Path) -> None:
    step = scanned_training()
    options: Any = {"feed": {"data": (2, 3)}, "outfeed": ("loss",)}
    program = hloipu.compile(step.text, stages=2, **options)
    assert (program.program.ipus, program.program.partitions) == (2, 8)
    assert program.program.stacks
    program.save(tmp_path / "p.ipux")
    given: Any = {"infeeds": {"data": step.batches}, "state": step.leaves[:2]}
    for mode in MODES:
        with load(tmp_path / "p.ipux").session(**given, mode=mode) as session:
            session.run(2)
            session.save_state(tmp_path / "half")
        with hloipu.compile(step.text, loop=1, partition="off", **options).session(
            infeeds=given["infeeds"]
        ) as session:
            session.load_state(tmp_path / "half")
            session.run(2)
            assert_close([*session.state().values()], step.trained(4))


def test_a_step_is_fed_and_told_by_calls(step: Sharded) -> None:
    program = hloipu.compile(step.text, role={str(n): "weight" for n in range(10)}, loop=1)
    expected, losses = trained(step, 1)
    given = [*state_of(step), *(x[0] for x in BATCHES)]
    for mode in MODES:
        assert_close(program.run(*given, mode=mode).outputs, [*expected, np.float32(losses[0])])
    with program.session(state=state_of(step), constants=given[10:]) as session:
        session.run(1)
        session.load_constants([x[1] for x in BATCHES])
        session.run(1)
        assert_close([*session.state().values()], trained(step, 2)[0])


def test_trainers_train(step: Sharded) -> None:
    trainer = hloipu.Trainer(step.text, state=state_of(step), metrics=["loss"])
    rows = [x.reshape(-1, x.shape[-1]) for x in BATCHES]
    history = trainer.fit(tuple(rows), epochs=1)
    expected, losses = trained(step)
    assert_close(history.steps["loss"], np.array(losses))
    assert isinstance(trainer.state, dict)
    assert_close([*trainer.state.values()], expected)


def test_jax_functions_have_nested_arrays(step: Sharded) -> None:
    import hloipu.jax

    program = hloipu.jax.compile(step.lowered(), loop=STEPS)
    with program.session(state=state_of(step), infeeds={"data": BATCHES}) as session:
        session.run(STEPS)
        (state,) = program.nested_state(session)
    leaves = [state[a][b] for a in "mp" for b in ("b1", "w1", "w2")]
    assert_close(leaves, trained(step)[0][:6])


def test_programs_on_one_device_share_blocks(step: Sharded, loop: CompiledProgram) -> None:
    def judged(specs: Any) -> CompiledProgram:
        given = (step.arguments[0]["p"], *step.arguments[1:])
        text = Sharded(loss, given, (specs, *step.specs[1:])).text
        return hloipu.compile(text, loop=1, feed={"data": (3, 4)}, outfeed=("loss",))

    feeds: dict[str, Any] = {"names": {"p": "state['p']"}, "infeeds": {"data": BATCHES}}
    device = hloipu.Device()
    with device.load(loop, state=state_of(step), infeeds={"data": BATCHES}) as training_session:
        session = device.load(judged(step.specs[0]["p"]), **feeds)
        training_session.run(2)
        session.run(1)
        b1, w1, w2 = trained(step, 2)[0][3:6]
        expected = loss({"b1": b1, "w1": w1, "w2": w2}, *(x[0] for x in BATCHES))
        assert_close([session.stream("loss").drain()[0][-1]], [np.float64(expected)])
        with pytest.raises(HloipuError) as caught:
            device.load(judged({"b1": P(), "w1": P("data"), "w2": P()}), **feeds)
        assert caught.value.code == "E2046"


def test_memory_and_host_bytes_are_those_of_blocks(step: Sharded) -> None:
    text = PROGRAMS["fsdp"].text
    divided, whole = hloipu.compile(text), hloipu.compile(text, partition="off")
    assert whole.program.participants == 1
    assert divided.profile().host.bytes_in * 8 == whole.profile().host.bytes_in
    assert divided.memory.total_bytes < whole.memory.total_bytes


def test_files_and_checks_have_whole_arrays(tmp_path: Path) -> None:
    program = PROGRAMS["megatron"]
    hlo, file = tmp_path / "m.hlo", tmp_path / "m.ipux"
    hlo.write_text(program.text)
    said = run("compile", str(hlo), "-o", str(file))
    assert "8 partitions, an IPU each: sharding annotations for a mesh data=2, model=4" in said.err
    assert_close(load(file).run(*program.leaves).outputs, program.results())
    done = run("check", str(hlo), "--mode", "functional")
    assert done.code == 0
    assert "agrees with xla-cpu" in done.err


def rotated(block: Callable[..., Array]) -> Callable[..., Array]:
    """Give each partition the block of the next one."""
    return lambda self, array, partition: block(self, array, (partition + 1) % self.partitions)


def test_swapped_blocks_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = PROGRAMS["megatron"]
    hlo = tmp_path / "m.hlo"
    hlo.write_text(program.text)
    monkeypatch.setattr(Blocks, "block", rotated(Blocks.block))
    compiled = hloipu.compile(program.text)
    with pytest.raises(AssertionError):
        assert_close(compiled.run(*program.leaves).outputs, program.results())
    assert run("check", str(hlo), "--mode", "functional").code == 6


def test_partitions_that_disagree_are_found() -> None:
    compiled = hloipu.compile(PROGRAMS["data parallel"].text)
    assert compiled.program.partitioning is not None
    array = compiled.program.partitioning.arrays[-1]
    blocks = Blocks(compiled.program.partitioning, array)
    alike = [np.zeros(blocks.block_shape, np.float32) for _ in range(8)]
    assert blocks.joined(alike, "x").shape == array.shape
    alike[3][0] = 1
    with pytest.raises(MismatchError) as caught:
        blocks.joined(alike, "x")
    assert caught.value.code == "E6010"


@pytest.mark.parametrize("axes", [{"x"}, {"d", "x"}], ids=["beside an axis", "all manual"])
def test_ragged_exchanges_in_manual_regions(axes: set[str]) -> None:
    mesh = jax.sharding.AbstractMesh((2, 4), ("d", "x"))
    members = drawn_members(3, 4, 2, 6)
    whole = [np.concatenate([m[k] for m in members]) for k in range(6)]

    def inner(rows: Any, *more: Any) -> Any:
        return jax.lax.ragged_all_to_all(rows * 2, *more, axis_name="x")

    def outer(*arrays: Any) -> Any:
        specs = (P("x", "d" if "d" in axes else None),) * 2 + (P("x"),) * 4
        return jax.shard_map(inner, mesh=mesh, in_specs=specs, out_specs=specs[0],
                             axis_names=axes, check_vma=False)(*arrays) + 1  # fmt: skip

    shardings = [jax.NamedSharding(mesh, P("x", *["d"] * (k < 2))) for k in range(6)]
    traced = jax.jit(outer, in_shardings=shardings).trace(
        *[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in whole]
    )
    text = traced.lower(lowering_platforms=("tpu",)).as_text("hlo")
    assert "ragged-all-to-all" in text
    wanted = ragged_results([[2 * m[0], *m[1:]] for m in members], [range(4)])
    assert_close(hloipu.compile(text).run(*whole).outputs, [np.concatenate(wanted) + 1])


def test_replicas_have_arguments_of_their_own() -> None:
    program = PROGRAMS["megatron"]
    halves = [x * 0.5 for x in program.leaves]
    for mode in MODES:
        found = hloipu.compile(program.text, replicas=2).run(
            each=[program.leaves, halves], mode=mode
        )
        assert_close(found.everyone[0], program.results())
        assert_close(found.everyone[1], replace(program, arguments=tuple(halves)).results())


def test_arrays_are_given_whole(step: Sharded, loop: CompiledProgram) -> None:
    program = PROGRAMS["megatron"]
    with pytest.raises(HloipuError) as caught:
        hloipu.compile(program.text).run(each=[program.leaves] * 8)
    assert caught.value.code == "E3105"
    with pytest.raises(HloipuError) as caught:
        loop.session(state=state_of(step), infeeds={"data": BATCHES}, identical=True)
    assert caught.value.code == "E2071"
