"""JAX functions on the simulated device, against JAX itself."""

import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy

import hloipu  # noqa: E402 - after the skip
from hloipu.jax import compile, estimate, jit, lower  # noqa: E402
from hloipu.training.trainer import Trainer  # noqa: E402

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
WEIGHTS = {"dense": {"w": np.full((3, 2), 0.5, np.float32), "b": np.zeros(2, np.float32)}}
SCALE = np.array([1, 2, 3], np.float32)  # a constant of the functions
TINY: dict[str, Any] = {"target": "tiny", "cache": False}


def scores(weights: Any, x: Any) -> Any:
    return (x * SCALE) @ weights["dense"]["w"] + weights["dense"]["b"]


def step(weights: Any, count: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any) -> Any:
        return -jnp.mean(jax.nn.log_softmax(scores(weights, x))[jnp.arange(len(x)), y])

    value, slopes = jax.value_and_grad(loss)(weights)
    moved = jax.tree.map(lambda w, g: w - 0.5 * g, weights, slopes)
    return moved, count + 1, {"loss": value, "largest": jnp.max(jnp.abs(x))}


def in_jax(steps: int) -> tuple[Any, list[float]]:
    weights, losses = WEIGHTS, []
    for n in range(steps):
        at = 4 * (n % 3)
        weights, _, found = step(weights, 0, X[at : at + 4], Y[at : at + 4])
        losses.append(float(found["loss"]))
    return weights, losses


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_call_takes_and_gives_what_the_function_does() -> None:
    program = compile(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1), **TINY)
    found = program(WEIGHTS, np.int32(6), X[:4], Y[:4])
    assert_close(found, step(WEIGHTS, np.int32(6), X[:4], Y[:4]))
    assert isinstance(found[0]["dense"]["w"], np.ndarray)
    with pytest.raises(UsageError) as error:
        program({"dense": WEIGHTS["dense"]["w"]}, np.int32(6), X[:4], Y[:4])
    assert error.value.code == "E3175"


def test_arguments_may_be_shapes_keys_and_unused() -> None:
    def noisy(key: Any, unused: Any, x: Any) -> Any:
        return x + jax.random.bits(key, x.shape), jax.random.split(key)[0]

    x = jnp.arange(4, dtype=jnp.uint32)
    shapes = jax.ShapeDtypeStruct(x.shape, x.dtype)
    key = jax.random.key(3)
    program = hloipu.jax.compile(noisy, key, 1.5, shapes, **TINY)
    found, new = program(key, 1.5, x)
    wanted, wanted_key = noisy(key, 1.5, x)
    np.testing.assert_array_equal(found, wanted)
    assert bool(new == wanted_key)


def test_a_session_keeps_the_donated_arguments() -> None:
    program = compile(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1), loop=3, **TINY)
    rows = [(X[at : at + 4], Y[at : at + 4]) for at in (0, 4, 8)]
    with program.session(infeeds={"data": rows * 2}) as session:
        session.run(6)
        weights, count = program.nested_state(session)
        losses = [x.element for x in session.stream("loss").drain()]
        assert len(session.stream("largest").drain()) == 6
    wanted, wanted_losses = in_jax(6)
    assert int(count) == 6
    assert_close(weights, wanted)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)


def test_queues_are_named_by_argument() -> None:
    lowered = lower(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1))
    assert lowered.parameters == ((0, 1), (2,), (3,), (4,))
    found = lowered.wrapping({"images": (2,), "labels": (3,)}, ("a", "b"))
    assert found == {"feed": {"images": (3,), "labels": (4,)}, "outfeed": ("a=3", "b=4")}


def test_a_trainer_takes_lowered_functions() -> None:
    lowered = lower(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1))
    made = Trainer(
        lowered.text,
        state=lowered.state,
        metrics=("largest", "loss"),
        prediction=lower(scores, WEIGHTS, X[:4]).text,
        **TINY,
    )
    history = made.fit((X, Y), 4)
    assert isinstance(made.state, dict)
    weights, count = lowered.nested_state(made.state)
    wanted, losses = in_jax(12)
    assert int(count) == 12
    assert_close(weights, wanted)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(made.predict(X), scores(wanted, X), rtol=1e-4, atol=1e-5)


def test_without_jax_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [name for name in sys.modules if name.startswith("hloipu.jax")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError) as error:
        import_module("hloipu.jax")
    assert error.value.code == "E3174"


def test_wide_types_are_halved_as_jax_halves_them() -> None:
    wide, count = X[:4].astype(np.float64), np.arange(4)
    program = compile(lambda x, n: (x * 2, n + 1), wide, count, **TINY)
    found = program(wide, count)
    assert [x.dtype for x in found] == [np.float32, np.int32]
    np.testing.assert_array_equal(found[0], 2 * X[:4])


def moving(x: Any, mean: Any) -> Any:
    return mean + x, jnp.sum(mean)


def test_arguments_are_counted_from_the_end_too() -> None:
    program = compile(moving, X[0], X[1], donate=-1, loop=2, feed={"rows": -2}, **TINY)
    assert program.lowered.donated == (1,)
    with program.session(infeeds={"rows": X}) as session:
        session.run(2)
        (mean,) = program.nested_state(session)
    np.testing.assert_allclose(mean, X[1] + X[0] + X[1], rtol=1e-6)


@pytest.mark.parametrize("more", [{"donate": 2}, {"donate": 1, "feed": {"rows": (0, 2)}}])
def test_arguments_that_are_not_there_are_named(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"E2063.*no argument 2"):
        compile(moving, X[0], X[1], loop=2, **more, **TINY)


def test_a_state_of_shapes_alone_is_given_later() -> None:
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    program = compile(moving, X[0], shape, donate=1, loop=2, **TINY)
    with pytest.raises(UsageError, match="E3154"):
        _ = program.lowered.state
    with program.session(state=[X[1]], infeeds={"data": X}) as session:
        session.run(2)
    with (
        program.session(infeeds={"data": X}) as session,
        pytest.raises(UsageError, match="E3154"),
    ):
        session.run(2)


def test_a_jitted_function_is_compiled_once_for_each_kind_of_arguments() -> None:
    def scaled(x: Any, power: int, *, shift: Any = 0.0) -> Any:
        return {"y": x**power + shift}

    on_device = jit(scaled, static_argnums=1, **TINY)
    for power in (2, 3):
        for shift in (0.5, 1.5):
            y = on_device(X[:4], power, shift=np.float32(shift))["y"]
            np.testing.assert_allclose(y, X[:4] ** power + np.float32(shift), rtol=1e-5)
    assert on_device.compiled(X[:4], 2, shift=np.float32(7)) is on_device.compiled(
        X[4:8], 2, shift=np.float32(8)
    )
    assert on_device.compiled(X[:4], 3, shift=np.float32(7)) is not on_device.compiled(
        X[:4], 2, shift=np.float32(7)
    )
    assert on_device(X[:8], 2)["y"].shape == (8, 3)


@pytest.mark.parametrize("form", ["jitted", "traced", "lowered"])
def test_what_jax_has_made_of_a_function_is_taken(form: str) -> None:
    def used_in_part(weights: Any, unused: Any, x: Any) -> Any:
        return weights["dense"]["w"].sum() + x

    jitted = jax.jit(used_in_part, donate_argnums=2)
    arguments = WEIGHTS, X, X[:4]
    given = {
        "jitted": (jitted, *arguments),
        "traced": (jitted.trace(*arguments),),
        "lowered": (jitted.lower(*arguments),),
    }[form]
    program = compile(*given, **TINY)
    assert program.lowered.donated == (2,)
    assert program.lowered.parameters == ((0,), (), (1,))  # JAX leaves out what is not used
    np.testing.assert_allclose(program(*arguments), used_in_part(*arguments), rtol=1e-6)
    with pytest.raises(UsageError, match="E3176"):
        compile(jitted.lower(*arguments), X, **TINY)


def test_arguments_given_by_name_stay_so() -> None:
    lowered = jax.jit(scores, keep_unused=True).lower(WEIGHTS, x=X[:4])
    program = compile(lowered, **TINY)
    assert_close(program(WEIGHTS, x=X[4:8]), scores(WEIGHTS, X[4:8]))


def test_an_inference_function_loops_over_what_is_fed() -> None:
    program = compile(scores, WEIGHTS, X[:4], loop=3, feed={"images": "x"}, outfeed=["y"], **TINY)
    rows = [X[at : at + 4] for at in (0, 4, 8)]
    with program.session(infeeds={"images": rows}) as session:
        session.run(3)
        found = np.concatenate([x.element for x in session.stream("y").drain()])
    np.testing.assert_allclose(found, scores(WEIGHTS, X), rtol=1e-5)


def test_state_loops_without_data() -> None:
    program = compile(lambda n: n * 2 + 1, np.int32(0), donate=0, loop=3, **TINY)
    with program.session() as session:
        session.run(6)
        assert program.nested_state(session) == (2**6 - 1,)


def test_paths_name_arguments_and_groups() -> None:
    lowered = lower(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1))
    assert lowered.numbers("weights") == lowered.numbers(0) == (0, 1)
    assert lowered.numbers(("weights/dense/w", "weights['dense']['b']")) == (1, 0)
    assert lowered.numbers(range(2, 4)) == (3, 4)
    with pytest.raises(UsageError, match=r"E2063(.|\n)*did you mean weights"):
        lowered.numbers("weight")


def test_estimates_need_shapes_only() -> None:
    weights = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), WEIGHTS)
    x = jax.ShapeDtypeStruct((4, 3), np.float32)
    estimated = estimate(scores, weights, x, **TINY)
    program = compile(scores, WEIGHTS, X[:4], **TINY)
    assert estimated.total_cycles == program.program.estimate().total_cycles
    with pytest.raises(UsageError, match=r"E3175.*without values"):
        program(weights, x)


def test_work_is_told_by_the_keys_of_jax() -> None:
    program = compile(scores, WEIGHTS, X[:4], **TINY)
    ours = program.cost_analysis()
    theirs = jax.jit(scores).lower(WEIGHTS, X[:4]).cost_analysis()
    assert {name: ours[name] for name in ("flops", "bytes accessed")} == {
        name: theirs[name] for name in ("flops", "bytes accessed")
    }
    assert ours["transcendentals"] == 0
    assert 0 < ours["cycles"] < program.program.estimate().lower_bound_cycles  # without the host


def test_programs_from_functions_know_their_lines() -> None:
    sources = compile(scores, WEIGHTS, X[:4], **TINY).program.sources
    assert any("test_jax.py" in line for line in sources.values())


def test_donated_arguments_and_accumulators_are_named() -> None:
    args = (WEIGHTS, np.int32(0), X[:4], Y[:4])
    options: dict[str, Any] = {"loop": 2, "micro_batches": 2, "target": "tiny"}
    cases: list[tuple[Any, set[str]]] = [
        ({"weights/dense/w": "bf16"}, {"bf16", "f32"}),
        (["weights=f16"], {"f16"}),
        ([(slice(0, 1), "bf16")], {"bf16"}),
    ]
    for asked, kinds in cases:
        program = compile(step, *args, donate=("weights", "count"), accumulator=asked, **options)
        variables = program.program.program.variables
        assert {x.element_type for x in variables if x.name.startswith("accumulator")} >= kinds
    assert program.lowered.donated == (0, 1)
    function = jit(step, donate_argnames="weights", **TINY)
    assert_close(function(*args), step(*args))
    with pytest.raises(UsageError, match=r"E2063(.|\n)*takes weights, count, x, y"):
        lower(step, *args, donate="state")
    with pytest.raises(UsageError, match="E3176"):
        lower(jax.jit(lambda x, n: x * n, static_argnums=1), X, 2, donate=0)


@pytest.mark.parametrize("selectors", ["2", 2, ("loss", "largest"), slice(2, 3), range(2, 3)])
def test_elements_of_named_results_are_dictionaries(selectors: Any) -> None:
    args = (WEIGHTS, np.int32(0), X[:4], Y[:4])
    program = compile(step, *args, donate=(0, 1), loop=3, outfeed={"seen": selectors}, **TINY)
    rows = [{"x": X[n : n + 4], "y": Y[n : n + 4]} for n in (0, 4, 8)]
    with program.session(infeeds={"data": rows}) as session:
        session.run(3)
        elements = [x.element for x in session.stream("seen").drain()]
    np.testing.assert_allclose([x["loss"] for x in elements], in_jax(3)[1], rtol=1e-5)
    assert [float(x["largest"]) for x in elements] == [float(np.abs(x["x"]).max()) for x in rows]
    with pytest.raises(UsageError, match=r"E2063(.|\n)*2/loss"):
        compile(step, *args, donate=(0, 1), loop=3, outfeed={"seen": "los"}, **TINY)


def test_what_no_queue_takes_is_the_last_result() -> None:
    text = lower(step, WEIGHTS, np.int32(0), X[:4], Y[:4], donate=(0, 1)).text
    program = hloipu.compile(text, loop=3, role={"x": "const", "y": "const"}, target="tiny")
    weights, count = WEIGHTS, np.int32(0)
    for _ in range(3):
        weights, count, seen = step(weights, count, X[:4], Y[:4])
    args = (WEIGHTS, np.int32(0), X[:4], Y[:4])
    looped = compile(step, *args, donate=(0, 1), loop=3, feed={}, outfeed={}, **TINY)
    assert_close(looped(*args), (weights, count, seen))
    for mode in ("functional", "exact"):
        found = program.run(*jax.tree.leaves(WEIGHTS), np.int32(0), X[:4], Y[:4], mode=mode)
        assert_close(found.outputs, jax.tree.leaves((weights, count, seen)))
