"""Scanned layers cut into stages: their weights go along in pieces, and nobody sees it."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hloipu
import hloipu.jax
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.compiled import CompiledProgram, load
from hloipu_runtime.program.seen import seen_by_users
from tests.support.command_line import run
from tests.support.stacked_steps import ROWS, SCANNED, UNROLLED, StackedStep

UPDATES = 2
ADAM = SCANNED["adam"]
CUTS: tuple[dict[str, Any], ...] = (
    {"stages": 2, "micro_batches": 1},
    {"stages": 4, "micro_batches": 4, "schedule": "interleaved"},
    {"stages": 2, "micro_batches": 3, "recompute": "full", "schedule": "sequential"},
    {"stages": 2, "micro_batches": 2, "replicas": 2},
    {"stages": 2, "micro_batches": 2, "replicas": 2, "shard_optimizer": True},
    {"stages": 3, "micro_batches": 2, "offload": "on", "accumulator_dtype": "f32"},
)


@cache
def cut(name: str, number: int) -> CompiledProgram:
    options: dict[str, Any] = {
        "target": "tiny",
        "loop": UPDATES,
        "over_memory": "allow",
        "cache": False,
    }
    return hloipu.compile(SCANNED[name].text, **options, **CUTS[number])


def leaves(state: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(x) for x in jax.tree.leaves(state)]


@pytest.mark.parametrize(
    ("name", "number"),
    [("adam", n) for n in range(len(CUTS))]
    + [("adamw-clipped", 1), ("momentum-axis-1", 0), ("scaled-clipped", 1), ("factored", 1)],
)
@pytest.mark.thinned(6)
def test_updates_are_those_of_the_plain_step(name: str, number: int) -> None:
    program, step, asked = cut(name, number), SCANNED[name], CUTS[number]
    assert program.program.stacks
    replicas = asked.get("replicas", 1)
    elements = asked["micro_batches"] * replicas
    feeds = {"data": step.batches(UPDATES * elements)}
    with program.session(state=leaves(step.state()), infeeds=feeds) as session:
        session.run()
        found = [session.state(replica) for replica in range(replicas)]
    expected = leaves(step.expected(elements, UPDATES))
    for each in found:
        for got, want in zip(each.values(), expected, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("step", UNROLLED.values(), ids=UNROLLED)
@pytest.mark.thinned(2)
def test_stacks_of_written_out_loops_are_cut_as_well(step: StackedStep) -> None:
    program = hloipu.compile(
        step.text, target="tiny", loop=UPDATES, over_memory="allow", cache=False, stages=2,
        micro_batches=2,
    )  # fmt: skip
    stacks = {x.name for x in program.program.stacks if x.kind == "parameter"}
    stacked = [x for x in leaves(step.state()) if ROWS in x.shape[: step.axis + 1] and x.ndim > 1]
    assert len(stacks) == len(stacked)
    with program.session(
        state=leaves(step.state()), infeeds={"data": step.batches(2 * UPDATES)}
    ) as session:
        session.run()
        found = session.state()
    for got, want in zip(found.values(), leaves(step.expected(2, UPDATES)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_tiles_by_themselves_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to the bit, where both add sums that are cut piece by piece."""
    monkeypatch.setattr(Reduce, "combined_with", Codelet.combined_with)
    program = cut("adam", 1)
    states = []
    for mode in ("functional", "exact"):
        feeds = {"data": ADAM.batches(4 * UPDATES)}
        state = leaves(ADAM.state())
        with program.session(state=state, infeeds=feeds, mode=mode) as session:
            session.run()
            states.append(session.state())
    for one, other in zip(states[0].values(), states[1].values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_keeps_what_users_see(tmp_path: Path) -> None:
    program = cut("adam", 0)
    program.save(tmp_path / "step.ipux")
    again = load(tmp_path / "step.ipux")
    assert again.program.stacks == program.program.stacks
    feeds = {"data": ADAM.batches(UPDATES)}
    with again.session(state=leaves(ADAM.state()), infeeds=feeds) as session:
        session.run()
        shapes = [x.shape for x in session.state().values()]
    assert shapes == [x.shape for x in leaves(ADAM.state())]


def test_checkpoints_go_from_one_cut_to_another(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with cut("adam", 0).session(
        state=leaves(ADAM.state()), infeeds={"data": ADAM.batches(UPDATES)}
    ) as session:
        session.run()
        session.save_state(path)
    whole = hloipu.compile(
        ADAM.text, target="tiny", loop=1, micro_batches=1, stages=1, over_memory="allow",
        cache=False,
    )  # fmt: skip
    assert not whole.program.stacks
    with whole.session(infeeds={"data": ADAM.batches(UPDATES + 1)}) as session:
        session.load_state(path)
        session.run()
        found = session.state()
    for got, want in zip(found.values(), leaves(ADAM.expected(1, UPDATES + 1)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_an_executable_is_given_whole_arrays_by_name(tmp_path: Path) -> None:
    cut("adam", 0).save(tmp_path / "step.ipux")
    names = [x.name for x in seen_by_users(cut("adam", 0).program).state]
    arrays = dict(zip(names, leaves(ADAM.state()), strict=True))
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    x, y = ADAM.batches(UPDATES)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    outcome = run(
        "run", str(tmp_path / "step.ipux"), "--over-memory", "allow",
        "--inputs", str(tmp_path / "in.npz"), "--infeed", f"data={tmp_path / 'data.npz'}",
        "-o", str(tmp_path / "out.npz"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    with np.load(tmp_path / "out.npz") as made:
        for n, want in enumerate(leaves(ADAM.expected(1, UPDATES))):
            np.testing.assert_allclose(made[f"out_{n}"], want, rtol=2e-5, atol=2e-6)


def test_the_command_line_takes_and_gives_whole_arrays(tmp_path: Path) -> None:
    step, count = tmp_path / "step.hlo", len(leaves(ADAM.state()))
    step.write_text(ADAM.text)
    arrays = {f"in_{n}": x for n, x in enumerate(leaves(ADAM.state()))}
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    x, y = ADAM.batches(2 * UPDATES)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    outcome = run(
        "run", str(step), "--target", "tiny", "--stages", "2", "--micro-batches", "2",
        "--loop", str(UPDATES), "--over-memory", "allow", "--no-cache",
        "--inputs", str(tmp_path / "in.npz"), "--infeed", f"data={tmp_path / 'data.npz'}",
        "-o", str(tmp_path / "out.npz"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert f"state: parameters 0-{count - 1} become results 0-{count - 1}" in outcome.err
    with np.load(tmp_path / "out.npz") as made:
        for n, want in enumerate(leaves(ADAM.expected(2, UPDATES))):
            np.testing.assert_allclose(made[f"out_{n}"], want, rtol=2e-5, atol=2e-6)


def test_jax_functions_are_given_and_give_what_they_do() -> None:
    program = hloipu.jax.compile(
        ADAM.step, ADAM.state(), *ADAM.batch(0), donate=0, loop=UPDATES, stages=2,
        micro_batches=2, target="tiny", over_memory="allow", cache=False,
    )  # fmt: skip
    assert program.program.program.stacks
    with program.session(infeeds={"data": ADAM.batches(2 * UPDATES)}) as session:
        session.run()
        (found,) = program.nested_state(session)
    expected = ADAM.expected(2, UPDATES)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for got, want in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_a_trainer_keeps_whole_arrays() -> None:
    trainer = hloipu.Trainer(
        ADAM.text, state=leaves(ADAM.state()), micro_batches=2, stages=2, target="tiny",
        over_memory="allow", cache=False,
    )  # fmt: skip
    x, y = ADAM.batches(2 * UPDATES)
    trainer.fit((x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])), progress=False)
    assert trainer.state is not None
    expected = leaves(ADAM.expected(2, UPDATES))
    for got, want in zip(trainer.state.values(), expected, strict=True):  # type: ignore[union-attr]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
