"""`hloipu check` of steps in loops, cut and on replicas."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu.check import formed_step
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.lowering.pipelines import device_loop as wrapped_step
from hloipu_compiler.lowering.pipelines import gradient_sums
from hloipu_compiler.lowering.pipelines import positions as pipeline_positions
from hloipu_compiler.lowering.pipelines import results as pipeline_results
from hloipu_compiler.lowering.pipelines.gradient_sums import accumulated
from hloipu_compiler.lowering.pipelines.results import finished
from hloipu_compiler.partition.stages.pipelining import pipelined
from hloipu_runtime.kernels.contractions.dot import dotting
from tests.support.arrays import Array
from tests.support.check_texts import BROADCAST_AMONG_TWO, TWO_LAYERS
from tests.support.command_line import Outcome, run
from tests.support.sessions import SUMS
from tests.support.xla_oracle import available

FED = ("--feed", "data=2,3", "--target", "tiny", "--over-memory", "allow")
F64 = ("--against", "evaluator-f64")
WAYS: dict[str, tuple[str, ...]] = {
    "loop": ("--loop", "3"),
    "mean of many turns": ("--loop", "12", "--outfeed", "loss:mean=2"),
    "sum of two runs": ("--loop", "3", "--steps", "6", "--outfeed", "loss:sum"),
    "every second": ("--loop", "5", "--outfeed", "loss:every=2"),
    "micro-batches": ("--loop", "2", "--micro-batches", "5", "--outfeed", "loss:mean=2"),
    "sum, f16": ("--micro-batches", "3", "--reduction", "sum", "--accumulator-dtype", "f16"),
    "running mean": ("--micro-batches", "3", "--reduction", "running_mean"),
    "replicas": ("--loop", "2", "--replicas", "2"),
    "shards": ("--loop", "2", "--shards", "2"),
    "stages": ("--stages", "2", "--micro-batches", "4", "--schedule", "interleaved",
               "--offload", "on", "--replicas", "2", "--shard-optimizer", "--loop", "2",
               "--recompute", "full"),
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "step.hlo"
    path.write_text(TWO_LAYERS)
    return str(path)


def named(outcome: Outcome) -> dict[str, str]:
    """Return the mark of every array by its name."""
    lines = [line for line in outcome.out.splitlines() if "f32[" in line]
    return {line[5:].partition(" f32[")[0]: line[:4].strip() for line in lines}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("cut", WAYS)
def test_steps_agree(cut: str, path: str) -> None:
    outcome = run("check", path, *FED, *F64, *WAYS[cut])
    assert outcome.code == 0, outcome
    rest = "out_2" if cut in ("loop", "shards") else "outfeed result.2"
    loss = "outfeed loss" if "loss" in " ".join(WAYS[cut]) else rest
    assert named(outcome) == {"state v": "ok", "state w": "ok", loss: "ok"}
    assert outcome.err.endswith("agrees with evaluator-f64 on tiny, functional\n")
    assert "without samples" not in outcome.out


def test_the_reference_is_not_cut_where_cuts_are_given(path: str) -> None:
    outcome = run("check", path, *FED, *F64, "--micro-batches", "4", "--cut-at", "1")
    assert outcome.code == 0, outcome
    assert outcome.err.endswith("agrees with evaluator-f64 on tiny, functional\n")


@pytest.mark.usefixtures("checks_share_xla")
@pytest.mark.skipif(not available(), reason="no jaxlib")
def test_xla_is_the_judge_of_a_cut_step_on_tiles(path: str) -> None:
    candidates = ("--stages", "2", "--micro-batches", "2", "--replicas", "2", "--mode", "exact")
    outcome = run("check", path, *FED, *candidates, "--poison")
    assert outcome.code == 0, outcome
    assert "gradients and update together are the plain step on xla-cpu: 0 of 3" in outcome.out


def test_files_feed_both_sides(path: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {"in_2": random.normal(size=(24, 6)), "in_3": random.normal(size=(24, 3))}
    np.savez(tmp_path / "rows.npz", **{k: x.astype(np.float32) for k, x in rows.items()})  # type: ignore[arg-type]
    given = (path, *FED, *F64, "--loop", "4", "--infeed", f"data={tmp_path / 'rows.npz'}")
    short = run("check", *given)
    assert (short.code, "E2020" in short.err) == (7, True), short
    assert run("check", *given, "--repeat").code == 0
    assert run("check", *given, "--repeat", "--infeed", "other=x").code == 2


Plant = Callable[[pytest.MonkeyPatch], None]


def mean_of_too_many(patch: pytest.MonkeyPatch) -> None:
    def wrong(builder: Any, item: Any, total: Any, turns: int) -> Any:
        return finished(builder, item, total, turns + 1)

    patch.setattr(wrapped_step, "finished", wrong)
    patch.setattr(pipeline_results, "finished", wrong)


def one_micro_batch_too_many(patch: pytest.MonkeyPatch) -> None:
    right = accumulated

    def wrong(builder: Any, total: Any, x: Any, reduction: str, micro_batches: int) -> Any:
        return right(builder, total, x, reduction, micro_batches + 1)

    patch.setattr(pipeline_positions, "accumulated", wrong)


def replicas_added_up(patch: pytest.MonkeyPatch) -> None:
    right = gradient_sums._divided
    patch.setattr(gradient_sums, "_divided", lambda builder, x, _replicas: right(builder, x, 1))


PLANTED: dict[str, tuple[Plant, tuple[str, ...], dict[str, str]]] = {
    "mean of a loop": (
        mean_of_too_many, WAYS["mean of many turns"],
        {"state v": "ok", "state w": "ok", "outfeed loss": "DIFF"},
    ),
    "mean of micro-batches": (
        mean_of_too_many, WAYS["micro-batches"],
        {"state v": "ok", "state w": "ok", "outfeed loss": "DIFF"},
    ),
    "accumulation": (
        one_micro_batch_too_many, ("--micro-batches", "4"),
        {"state v": "DIFF", "state w": "DIFF", "outfeed result.2": "ok"},
    ),
    "replicas": (
        replicas_added_up, ("--loop", "1", "--replicas", "2"),
        {"state v": "DIFF", "state w": "DIFF", "outfeed result.2": "ok"},
    ),
}  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_loop_or_cut_is_found(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, cut, marks = PLANTED[name]
    plant(monkeypatch)
    outcome = run("check", path, *FED, *F64, *cut)
    assert outcome.code == 6, outcome
    assert marks.items() <= named(outcome).items()
    assert "the plain step alone agrees" in outcome.err
    assert "E6003" in outcome.err


def test_a_wrong_kernel_in_a_loop_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*decided: Any) -> Callable[..., Array]:
        product = dotting(*decided)
        return lambda *arguments: product(*arguments) * np.float32(1.001)

    monkeypatch.setattr("hloipu_runtime.codelets.dense.dot.dotting", wrong)
    outcome = run("check", path, *FED, *F64, "--micro-batches", "2")
    assert outcome.code == 6, outcome
    assert "error[E6002]: 'h' diverges on tiles" in outcome.err


def test_parts_that_are_not_the_step_are_found(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault in the program's cut and in the reference's: only the plain step tells."""
    right = pipelined

    def wrong(*arguments: Any) -> Any:
        module, plan = right(*arguments)
        return added_in_place_of_subtracted(module), plan

    monkeypatch.setattr(formed_step, "pipelined", wrong)
    outcome = run("check", path, *FED, *F64, "--micro-batches", "2")
    assert outcome.code == 6, outcome
    assert "DIFF cut step, out_0" in outcome.out
    assert "are not the plain step" in outcome.err


def added_in_place_of_subtracted(module: Module) -> Module:
    """Return a module whose updates go the wrong way."""
    computations = [
        replace(
            c,
            instructions=tuple(
                x._replace(opcode="add") if x.opcode == "subtract" and "new" in x.name else x
                for x in c.instructions
            ),
        )
        for c in module.computations
    ]
    return replace(module, computations=tuple(computations))


REFUSED = {
    "collectives": (BROADCAST_AMONG_TWO, ("--loop", "2", "--feed", "data=0"), "E0466"),
    "outfeed": (
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  t = token[] after-all()\n"
        '  o = token[] outfeed(x, t), outfeed_config="seen"\n  ROOT r = f32[4] negate(x)\n}\n',
        ("--loop", "2", "--feed", "data=0"), "E0466",
    ),
    "random": (
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  a = f32[] constant(0)\n"
        "  b = f32[] constant(1)\n  n = f32[4] rng(a, b), distribution=rng_uniform\n"
        "  ROOT r = f32[4] add(x, n)\n}\n",
        ("--loop", "2", "--feed", "data=0"), "E0466",
    ),
    "a file": (SUMS, ("--loop", "2", "--feed", "data=2", "--against", "x.npz"), "E0466"),
    "a feed without a loop": (SUMS, ("--infeed", "data=x.npz"), "E3158"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_reference_is_refused(name: str, tmp_path: Path) -> None:
    text, options, code = REFUSED[name]
    path = tmp_path / "m.hlo"
    path.write_text(text)
    outcome = run("check", str(path), "--target", "tiny", *F64, *options)
    assert outcome.code == (2 if code == "E3158" else 4), outcome
    assert code in outcome.err
    assert outcome.out == ""
