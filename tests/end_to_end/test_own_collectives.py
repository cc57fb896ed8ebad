"""Steps of several replicas that meet by collectives of their own, or not at all."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.uses import steps_within

STEP = """HloModule step, replica_count=2, input_output_alias={ {0}: (0, {}, must-alias) }

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  w = f32[4,3] parameter(0)
  x = f32[5,4] parameter(1)
  y = f32[5,3] parameter(2)
  p = f32[5,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[5,3] subtract(p, y)
  g = f32[4,3] dot(x, d), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  total = f32[4,3] all-reduce(g), replica_groups={}, to_apply=add
  rate = f32[] constant(0.01)
  rates = f32[4,3] broadcast(rate), dimensions={}
  change = f32[4,3] multiply(total, rates)
  new = f32[4,3] subtract(w, change)
  squares = f32[5,3] multiply(d, d)
  zero = f32[] constant(0)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  ROOT t = (f32[4,3], f32[]) tuple(new, loss)
}
"""


def data(steps: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    x = random.normal(size=(2 * steps, 5, 4)).astype(np.float32)
    return x, random.normal(size=(2 * steps, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_both_replicas_go_the_same_way(mode: str, micro_batches: int) -> None:
    """An all-reduce in the dump is the only one: gradients are not averaged once more."""
    program = hloipu.compile(
        STEP, target="tiny", loop=2, feed={"data": (1, 2)}, outfeed=["loss=1"], cache=False,
        micro_batches=micro_batches,
    )  # fmt: skip
    assert program.program.replicas == 2
    met = [x for x in steps_within(program.program.body, program.program)
           if isinstance(x, Collective)]  # fmt: skip
    assert len(met) == 1
    updates = 4
    x, y = data(updates * micro_batches)
    w = np.ones((4, 3), np.float32)
    with program.session(state=[w], infeeds={"data": (x, y)}, mode=mode) as session:
        session.run(updates)
        found = [session.state(replica)["w"] for replica in range(2)]
        losses = np.array([each.element for each in session.stream("loss").drain()])
    wanted: list[list[float]] = []
    for n in range(updates):
        total = np.zeros((4, 3))
        for k in range(n * micro_batches, (n + 1) * micro_batches):
            errors = [x[2 * k + r] @ w - y[2 * k + r] for r in range(2)]
            wanted.append([float((d * d).sum()) for d in errors])
            total += sum(x[2 * k + r].T @ errors[r] for r in range(2)) / micro_batches
        w = (w - 0.01 * total).astype(np.float32)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], w, rtol=1e-4, atol=1e-5)


SCALED = STEP.replace(
    """  rate = f32[] constant(0.01)
  rates = f32[4,3] broadcast(rate), dimensions={}
""",
    """  product = f32[4,3] multiply(total, total)
  nought = f32[] constant(0)
  mine = f32[] reduce(product, nought), dimensions={0,1}, to_apply=add
  all = f32[] all-reduce(mine), replica_groups={}, to_apply=add
  norm = f32[] sqrt(all)
  one = f32[] constant(1)
  most = f32[] maximum(norm, one)
  rate = f32[] divide(one, most)
  rates = f32[4,3] broadcast(rate), dimensions={}
""",
).replace(
    "  ROOT t = (f32[4,3], f32[]) tuple(new, loss)",
    """  parts = f32[4,3] multiply(new, new)
  part = f32[] reduce(parts, zero), dimensions={0,1}, to_apply=add
  whole = f32[] all-reduce(part), replica_groups={}, to_apply=add
  size = f32[] sqrt(whole)
  ROOT t = (f32[4,3], f32[], f32[]) tuple(new, loss, size)""",
)


def test_norms_over_replicas_are_of_the_update() -> None:
    """The norm of the gradients combined scales them, and new weights are no part of the loss."""
    program = hloipu.compile(
        SCALED, target="tiny", loop=1, feed={"data": (1, 2)}, micro_batches=3, cache=False
    )
    assert "  1 gradients are added up" in program.options["cut"]
    x, y = data(3)
    w = np.ones((4, 3), np.float32)
    with program.session(state=[w], infeeds={"data": (x, y)}) as session:
        session.run(1)
        found = session.state(0)["w"]
        (size,) = (each.element for each in session.stream("result.2").drain())
    total = np.sum([x[n].T @ (x[n] @ w - y[n]) for n in range(6)], axis=0) / 3
    new = w - total / max(np.sqrt(2 * (total**2).sum()), 1)
    np.testing.assert_allclose(found, new, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(size, np.full(2, np.sqrt(2 * (new**2).sum())), rtol=1e-4)


CACHE = """HloModule decode, input_output_alias={ {0}: (1, {}, must-alias) }

ENTRY e {
  w = f32[4,4] parameter(0)
  cache = f32[8,4] parameter(1)
  x = f32[1,4] parameter(2)
  at = s32[] parameter(3)
  z = s32[] constant(0)
  k = f32[1,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  new = f32[8,4] dynamic-update-slice(cache, k, at, z)
  s = f32[1,8] dot(k, new), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT t = (f32[8,4], f32[1,8]) tuple(new, s)
}
"""


def test_state_that_is_carried_is_each_replicas_own() -> None:
    program = hloipu.compile(
        CACHE, target="tiny", loop=2, feed={"word": (2, 3)}, outfeed=["s=1"], replicas=2,
        role={"cache": "carry"}, cache=False,
    )  # fmt: skip
    words = np.arange(32, dtype=np.float32).reshape(8, 1, 4)
    places = np.arange(8, dtype=np.int32) // 2
    with program.session(
        state=[np.zeros((8, 4), np.float32)],
        constants={0: np.eye(4, dtype=np.float32)},
        infeeds={"word": (words, places)},
    ) as session:
        session.run(4)
        for replica in range(2):
            cache = session.state(replica)["cache"]
            np.testing.assert_array_equal(cache[:4], words[replica::2, 0])
            assert not cache[4:].any()


MEETING_IN_A_STAGE = """HloModule meets, replica_count=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[4,6] parameter(0)
  n = f32[4,6] negate(x)
  total = f32[4,6] all-reduce(n), replica_groups={{0,1}}, to_apply=add
  double = f32[4,6] add(total, total)
  again = f32[4,6] all-reduce(double), replica_groups={{0,1}}, to_apply=add
  both = f32[4,6] add(again, x)
  ROOT result = f32[1,24] reshape(both)
}
"""


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_replicas_meet_within_stages(mode: str) -> None:
    program = hloipu.compile(
        MEETING_IN_A_STAGE, target="tiny", stages=2, micro_batches=3, cache=False
    )
    assert (program.program.replicas, program.program.ipus) == (2, 2)
    x = np.arange(6 * 24, dtype=np.float32).reshape(6, 4, 6)
    with program.session(infeeds={"data": (x,)}, mode=mode) as session:
        session.run()
        outputs = [each.element for each in session.stream("result.0").drain()]
    both = x.reshape(3, 2, 4, 6).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(
        np.stack(outputs).reshape(3, 2, 4, 6), -4 * both + x.reshape(3, 2, 4, 6)
    )
