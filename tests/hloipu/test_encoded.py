"""Texts in Graphcore's encoding, compiled: the state and losses of their formulas, however cut."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.graphcore.encoding.reading import flat_step
from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support.command_line import run
from tests.support.poplar_small import (
    TEXT,
    TURNS,
    WEIGHTS,
    Array,
    changed,
    elements,
    read,
    trained,
)
from tests.support.poplar_spelling import Spelling, Written
from tests.support.poplar_texts import text_of
from tests.support.poplar_trained import batches, start
from tests.support.poplar_trained import trained as perceptron_trained
from tests.support.poplar_variants import VARIANTS
from tests.support.poplar_windows import BEGINNINGS, WINDOWS, over_replicas

REDUCTIONS = ("sum", "mean", "running_mean")


def compiled(text: str, **options: Any) -> CompiledProgram:
    """Compile a text for a small machine."""
    return hloipu.compile(text, target="tiny", over_memory="allow", cache=False, **options)


def ran(
    program: CompiledProgram, state: list[Array], feeds: dict[str, Any], turns: int, sent: str,
    mode: Mode = "functional", count: int = 1,
) -> tuple[list[Array], list[float]]:  # fmt: skip
    """Return the state after a run, and what one outfeed got."""
    with program.session(state=state, infeeds=feeds, mode=mode) as session:
        session.run(turns)
        found = [np.asarray(x.element) for x in session.stream(sent).drain()]
        return list(session.state().values()), [float(y) for x in found for y in x.reshape(count)]


@pytest.mark.parametrize(
    ("schedule", "reduction", "stages"),
    list(itertools.product(range(3), REDUCTIONS, (2, 3))),
)
@pytest.mark.thinned(3)
def test_a_perceptron_with_adam_is_trained_alike(
    schedule: int, reduction: str, stages: int
) -> None:
    written = Written(
        stages=stages, schedule=schedule, reduction=reduction, micro_batches=4,
        spelling=Spelling(as_json=schedule == 1),
    )  # fmt: skip
    program = compiled(text_of(written))
    assert program.program.ipus == stages
    _check(written, program)


def _check(written: Written, program: CompiledProgram) -> None:
    feeds = {"a": iter(batches(written))}
    made, losses = ran(program, start(written), feeds, written.repeat, "b")
    state, expected = perceptron_trained(written)
    for mine, theirs in zip(made, state, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


@pytest.mark.parametrize(
    ("form", "reduction", "micro_batches"),
    list(itertools.product(("loop", "while"), REDUCTIONS, (1, 4))),
)
def test_loops_train_like_pipelines(form: str, reduction: str, micro_batches: int) -> None:
    written = Written(form=form, reduction=reduction, micro_batches=micro_batches)
    _check(written, compiled(text_of(written)))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("schedule", [None, "interleaved", "sequential"])
@pytest.mark.thinned(2)
def test_variants_are_compiled_to_what_they_say(name: str, schedule: str | None) -> None:
    variant = VARIANTS[name]
    if name == "batches in parts" and schedule not in (None, "sequential"):
        pytest.skip("a stage takes parts of a batch on the sequential schedule alone")
    program = compiled(variant.text, schedule=schedule)
    if name == "branches":
        assert program.program.ipus == 3
    feeds = {"x": iter([(x,) for x in variant.data])} if variant.data else {}
    made, sent = ran(program, [*WEIGHTS, *variant.state], feeds, TURNS, "l")
    np.testing.assert_array_equal(made[0], variant.weights[0])
    np.testing.assert_array_equal(made[1], variant.weights[1])
    assert sent == variant.sent


def test_tiles_compute_the_same() -> None:
    program = compiled(TEXT)
    feeds = {"x": iter([(x,) for x in elements()])}
    made, sent = ran(program, list(WEIGHTS), feeds, TURNS, "l", mode="exact")
    weights, losses = trained()
    np.testing.assert_array_equal(made, weights)
    assert sent == losses


@pytest.mark.parametrize("name", WINDOWS)
def test_older_accumulators_train_alike(name: str) -> None:
    window = WINDOWS[name]
    program = compiled(window.text)
    begun = list(BEGINNINGS[: window.arrays])
    feeds = {"x": iter([(x,) for x in elements()])}
    step = flat_step(read(window.text))
    assert step is not None
    assert (step.stated.why == "") is window.is_step
    if window.is_step:
        made, _ = ran(program, begun, feeds, TURNS, "l")
    else:
        with program.session(constants=dict(enumerate(begun)), infeeds=feeds) as session:
            made = list(session.run().outputs)
    for mine, theirs in zip(made, window.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("momentum", "replicas"), [(False, 2), (False, 4), (True, 4)])
def test_older_accumulators_combine_what_replicas_have(momentum: bool, replicas: int) -> None:
    window = over_replicas(momentum, replicas)
    program = compiled(window.text, replicas=replicas)
    feeds = {"x": iter([(x,) for x in elements(6 * replicas)])}
    begun = list(BEGINNINGS[: window.arrays])
    made, _ = ran(program, begun, feeds, TURNS, "l", count=replicas)
    for mine, theirs in zip(made, window.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_more_micro_batches_may_be_asked_for_than_the_text_says() -> None:
    """A mean stays one: its factor is that of the micro-batches that there are."""
    written = Written(reduction="mean", micro_batches=2)
    asked = Written(reduction="mean", micro_batches=4)
    _check(asked, compiled(text_of(written), micro_batches=4))


def test_a_count_that_is_no_constant_is_asked_for() -> None:
    text = changed(
        ("k = s32[] constant(3)", "k = s32[] parameter(2)"),
    )
    with pytest.raises(hloipu.UnsupportedError, match="micro-batches") as caught:
        compiled(text)
    assert caught.value.code == "E0541"
    program = compiled(text, micro_batches=3)
    feeds = {"x": iter([(x,) for x in elements()])}
    state = [*WEIGHTS]
    constants = {2: np.zeros((), np.int32)}
    with program.session(state=state, constants=constants, infeeds=feeds) as session:
        session.run(TURNS)
        np.testing.assert_array_equal(list(session.state().values())[:2], trained()[0])


def test_means_over_replicas_are_taken_as_the_text_says() -> None:
    """An all-reduce that divides by the number of replicas what it adds up, and that number."""
    mean = """mean {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  n = f32[] custom-call(b), custom_call_target="ReplicationNormalise"
  ROOT s = f32[] add(a, n)
}

"""
    text = changed(
        ("update {", mean + "update {"),
        ("  n0 = f32[2] subtract(w0, g0)",
         "  m0 = f32[2] all-reduce(g0), replica_groups={}, to_apply=mean\n"
         "  n0 = f32[2] subtract(w0, m0)"),
        ("  n1 = f32[2] subtract(w1, g1)",
         '  r = f32[] custom-call(), custom_call_target="ReplicationFactor"\n'
         "  rs = f32[2] broadcast(r), dimensions={}\n"
         "  m1 = f32[2] all-reduce(g1), replica_groups={}, to_apply=sum\n"
         "  q1 = f32[2] divide(m1, rs)\n  n1 = f32[2] subtract(w1, q1)"),
    )  # fmt: skip
    program = compiled(text, replicas=2)
    data = elements(12)
    made, _ = ran(program, list(WEIGHTS), {"x": iter([(x,) for x in data])}, TURNS, "l", count=2)
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    for turn in range(TURNS):
        taken = data[6 * turn : 6 * turn + 6]
        g0, g1 = sum(x * w1 for x in taken) / 2, sum(x * w0 for x in taken) / 2
        w0, w1 = w0 - g0, w1 - g1
    np.testing.assert_array_equal(made, [w0, w1])


def test_the_command_line_says_what_was_read_and_wins(tmp_path: Path) -> None:
    file = tmp_path / "small.hlo"
    file.write_text(TEXT)
    done = run("compile", str(file), "--target", "tiny", "--schedule", "sequential", "--no-cache",
               "--over-memory", "allow")  # fmt: skip
    assert done.code == 0, done.err
    said = "read from Graphcore's encoding: 3 micro-batches an update; 2 stages; grouped"
    assert said in done.err
    assert "in 12 slots" in done.err


def test_evaluating_takes_the_loops_as_they_are() -> None:
    text = VARIANTS["without queue"].text
    made = hloipu.evaluate(text, *WEIGHTS)
    np.testing.assert_array_equal(made, VARIANTS["without queue"].weights)
