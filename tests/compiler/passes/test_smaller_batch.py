"""`smaller-batch`: values of a divided batch, and where samples have one."""

from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.passes import run_passes
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError
from tests.support.passes import SUM, entry, parsed

SAMPLES = Path(__file__).parents[3] / "hlo_samples"

ROWS = ", ".join("{" + ", ".join(str(8 * i + j) for j in range(8)) + "}" for i in range(8))

STEP = entry(
    """  x = f32[8,16] parameter(0)
  w = f32[16,8] parameter(1)
  y = f32[8,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k = f32[8,8] constant({ROWS})
  s = f32[8,8] multiply(y, k)
  r = f32[64] reshape(s)
  p = f32[1,64] reshape(r)
  q = f32[8,8] reshape(p)
  d = f32[8,4] slice(q), slice={[0:8], [2:6]}
  z = f32[] constant(0)
  t = f32[8] reduce(d, z), dimensions={1}, to_apply=sum
  xt = f32[16,8] transpose(x), dimensions={1,0}
  g = f32[16,8] dot(xt, s), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[8], f32[16,8]) tuple(t, g)""".replace("ROWS", ROWS),
    SUM,
)
"""A batch of 8 and 8 features: the same number, and not the same dimension."""


def test_the_first_half_of_the_data_gives_the_first_half_of_the_rows() -> None:
    before = parsed(STEP)
    after, _ = run_passes(before, None, "smaller-batch")
    x, w = random_arguments(before, 0)
    whole = evaluate_everywhere(before, x, w)[0]
    part = evaluate_everywhere(after, x[:4], w)[0]
    assert (part == whole[:4]).all()


@pytest.mark.parametrize(
    "name",
    [
        "attention", "convnet_train_step", "mnist_adam_step", "scanned_blocks_train_step",
        "sort_topk", "transformer_block_bf16",
    ],
)  # fmt: skip
def test_samples_have_a_batch_that_can_be_halved(name: str) -> None:
    module = parse((SAMPLES / f"{name}.hlo").read_text(encoding="utf-8"))
    front, plan = run_passes(module, None, "front", verify_each=False)
    smaller, _ = run_passes(front, plan, "smaller-batch", verify_each=False)
    assert smaller is not front
    verify(smaller)


@pytest.mark.parametrize("name", ["scan_rnn", "newton_while"])
def test_time_steps_and_tables_are_no_batch(name: str) -> None:
    module = parse((SAMPLES / f"{name}.hlo").read_text(encoding="utf-8"))
    front, plan = run_passes(module, None, "front", verify_each=False)
    assert run_passes(front, plan, "smaller-batch", verify_each=False)[0] is front


def test_a_doubled_batch_gives_the_rows_of_doubled_data() -> None:
    before = parsed(STEP)
    after, _ = run_passes(before, None, "scaled-batch{to=16}")
    x, w = random_arguments(before, 0)
    wanted = evaluate_everywhere(before, x, w)
    rows, gradient = evaluate_everywhere(after, np.concatenate([x, x]), w)
    assert (rows == np.concatenate([wanted[0]] * 2)).all()
    np.testing.assert_allclose(gradient, 2 * wanted[1], rtol=1e-5)
    back, _ = run_passes(after, None, "scaled-batch{to=4}")
    part, _ = run_passes(before, None, "smaller-batch")
    assert [i.shape for i in back.entry.instructions] == [i.shape for i in part.entry.instructions]


@pytest.mark.parametrize("size", [0, -8, 2**40])
def test_a_batch_of_no_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError) as caught:
        run_passes(parsed(STEP), None, f"scaled-batch{{to={size}}}")
    assert caught.value.code == "E1011"
