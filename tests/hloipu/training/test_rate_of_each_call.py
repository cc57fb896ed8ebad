"""A learning rate that differs from call to call: the same steps by hand give the same weights."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
import hloipu.jax
from hloipu_runtime.errors import UsageError

Weights = dict[str, Any]
RATES = (0.5, 0.25, 0.125)
STEPS_PER_CALL = 2
RNG = np.random.default_rng(0)
W: Weights = {
    name: RNG.standard_normal(shape).astype("f4") / 2
    for name, shape in (("w1", (6, 8)), ("b1", (8,)), ("w2", (8, 3)))
}
X = RNG.standard_normal((48, 4, 6)).astype("f4")
Y = RNG.standard_normal((48, 4, 3)).astype("f4")
CUTS: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batches": 2},
    {"micro_batches": 2, "stages": 2},
    {"micro_batches": 2, "stages": 2, "replicas": 2},
    {"micro_batches": 2, "shards": 2, "reduction": "sum"},
)


def loss(w: Weights, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] - y) ** 2)


def step(params: Weights, lr: Any, x: Any, y: Any) -> tuple[Weights, Any]:
    found, slopes = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda w, slope: w - lr * slope, params, slopes), found


GRADIENTS = jax.jit(jax.grad(loss))
LOWERED = hloipu.jax.lower(step, W, jnp.float32(0), X[0], Y[0], donate=0)
STATE = LOWERED.state


def by_hand(cut: dict[str, Any]) -> Iterator[Weights]:
    """Yield the weights after each call, of an update a step by the combined gradients."""
    w, taken = W, 0
    count = cut.get("micro_batches", 1) * cut.get("replicas", 1)
    parts = 1 if cut.get("reduction") == "sum" else count
    for rate in RATES:
        for _ in range(STEPS_PER_CALL):
            slopes = [GRADIENTS(w, X[n], Y[n]) for n in range(taken, taken + count)]
            taken += count
            total = jax.tree.map(lambda *each: sum(each) / parts, *slopes)
            w = jax.tree.map(lambda a, b, rate=rate: a - rate * b, w, total)
        yield w


def opened(cut: dict[str, Any], role: str = "call", **more: Any) -> Any:
    program = hloipu.compile(
        LOWERED.text, target="tiny", loop=STEPS_PER_CALL, role={"lr": role},
        feed={"data": (4, 5)}, over_memory="allow", **cut,
    )  # fmt: skip
    return program.session(state=STATE, infeeds={"data": (X, Y)}, **more)


def assert_like(found: Weights, wanted: Weights) -> None:
    for name, array in wanted.items():
        (key,) = [x for x in found if name in x]
        np.testing.assert_allclose(found[key], array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("cut", "role"),
    [*((cut, "call") for cut in CUTS), (CUTS[0], "hyper"), (CUTS[3], "hyper")],
    ids=str,
)
@pytest.mark.thinned(2)
def test_each_call_has_its_rate(cut: dict[str, Any], role: str) -> None:
    constants = {} if role == "call" else {"constants": {"lr": 9.0}}
    with opened(cut, role, **constants) as session:
        for rate, wanted in zip(RATES, by_hand(cut), strict=True):
            session.run(inputs={"lr": np.float32(rate)})
            assert_like(session.state(), wanted)


@pytest.mark.parametrize(
    "schedule",
    [list(RATES), lambda steps: RATES[steps // STEPS_PER_CALL]],
    ids=["list", "function"],
)
def test_schedules_give_each_call_its_rate(schedule: Any) -> None:
    *_, wanted = by_hand(CUTS[2])
    with opened(CUTS[2], mode="exact") as session:
        session.run(len(RATES) * STEPS_PER_CALL, schedules={"lr": schedule})
        assert_like(session.state(), wanted)


@pytest.mark.parametrize("cut", [CUTS[0], CUTS[3]], ids=str)
def test_a_trainer_takes_schedules(cut: dict[str, Any]) -> None:
    *_, wanted = by_hand(cut)
    trainer = hloipu.Trainer(
        LOWERED.text,
        state=STATE,
        schedules={"lr": RATES},
        target="tiny",
        over_memory="allow",
        **cut,
    )
    fed = cut.get("micro_batches", 1) * cut.get("replicas", 1) * len(RATES) * STEPS_PER_CALL
    history = trainer.fit(
        zip(X[:fed], Y[:fed], strict=True), steps_per_epoch=len(RATES) * STEPS_PER_CALL,
        steps_per_execution=STEPS_PER_CALL, progress=False,
    )  # fmt: skip
    assert len(history.steps["loss"]) == len(RATES) * STEPS_PER_CALL
    assert trainer.state is not None
    assert_like(dict(trainer.state), wanted)
    with pytest.raises(UsageError, match="has 3 values; there are 2 calls of 2 steps"):
        trainer.fit((X, Y), steps_per_epoch=4, steps_per_execution=2, progress=False)


def test_what_a_rate_costs_and_what_is_refused() -> None:
    with opened({}, "hyper", constants={"lr": 1.0}) as session:
        one = session.run().cycles
        again = session.run(inputs={"lr": 0.5})
        assert again.cycles - one == session.loading_cycles > 0
        assert again.profile.lower_bound_cycles == again.cycles
        assert session.run(inputs={"lr": 0.5}).cycles == again.cycles
        for given, said in (
            ({"schedules": {"lr": [1.0]}}, "has 1 values; there are 2 calls of 2 steps"),
            ({"schedules": {"lr": 1.0}}, "has no values"),
            ({"inputs": {"rl": 1.0}}, "takes no 'rl' from a session"),
            ({"inputs": {"lr": np.zeros(2, np.float32)}}, "shape"),
        ):
            with pytest.raises(UsageError, match=said):
                session.run(4, **given)
        assert session.run(inputs={}).cycles == one
