"""Updates side by side, updates that read a micro-batch, and ops that only tell something."""

import numpy as np
import pytest

from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.reading import flat_step
from tests.support.poplar_run import evaluated
from tests.support.poplar_shards import sharded_loop
from tests.support.poplar_small import (
    MICRO_BATCHES,
    TEXT,
    WEIGHTS,
    changed,
    elements,
    read,
    trained,
)

_COUNT = """  c = s32[] constant(3)
  k = () custom-call(c), custom_call_target="GradientAccumulationCount"
"""
_ONE = f"""update_N {{
  g = f32[2] parameter(0)
  w = f32[2] parameter(1)
{_COUNT}  n = f32[2] subtract(w, g)
  ROOT out = (f32[2]) tuple(n)
}}

"""
_UPDATES = 'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate"}'
_CALLS = (
    f"  ru = (f32[2], f32[2]) call(g0, g1, w0, w1), to_apply=update, {_UPDATES}\n"
    "  n0 = f32[2] get-tuple-element(ru), index=0\n"
    "  n1 = f32[2] get-tuple-element(ru), index=1\n"
)


def _two_updates(second: str = _ONE) -> str:
    calls = "".join(
        f"  ru{n} = (f32[2]) call(g{n}, w{n}), to_apply=update_{n}, {_UPDATES}\n"
        f"  n{n} = f32[2] get-tuple-element(ru{n}), index=0\n"
        for n in (0, 1)
    )
    both = _ONE.replace("update_N", "update_0") + second.replace("update_N", "update_1")
    return changed((_CALLS, calls), ("pipeline {", both + "pipeline {"))


def test_updates_side_by_side_are_one() -> None:
    text = _two_updates()
    made, _ = evaluated(text, WEIGHTS, [(x,) for x in elements()])
    np.testing.assert_array_equal(made, trained()[0])
    step = flat_step(read(text))
    assert step is not None
    assert step.stated.micro_batches == MICRO_BATCHES


def test_updates_side_by_side_agree_on_their_micro_batches() -> None:
    text = _two_updates(_ONE.replace("constant(3)", "constant(2)"))
    with pytest.raises(PoplarError, match=r"'ru0' says 3 micro-batches.*'ru1' says 2") as caught:
        flat_step(read(text))
    assert caught.value.code == "E0541"


def test_an_update_may_read_what_the_last_micro_batch_makes() -> None:
    """In a loop: the last loss of two is taken off the first weight besides its gradients."""
    text = changed(
        ("call(s0, s1, w0, w1)", "call(s0, s1, w0, w1, loss)"),
        ("  n0 = f32[2] subtract(w0, g0)",
         "  last = f32[] parameter(4)\n  lasts = f32[2] broadcast(last), dimensions={}\n"
         "  m0 = f32[2] subtract(w0, lasts)\n  n0 = f32[2] subtract(m0, g0)"),
        text=sharded_loop("repeat", 2),
    )  # fmt: skip
    data = elements(4)
    made, sent = evaluated(text, WEIGHTS, [(x,) for x in data])
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for first in (0, 2):
        taken = data[first : first + 2]
        losses += [float(np.sum(x * w0 * w1)) for x in taken]
        g0, g1 = sum(x * w1 for x in taken), sum(x * w0 for x in taken)
        w0, w1 = w0 - losses[-1] - g0, w1 - g1
    np.testing.assert_array_equal(made, [w0, w1])
    assert sent == [[loss] for loss in losses]
    step = flat_step(read(text))
    assert step is not None
    assert "last micro-batch" in step.stated.why


def test_printing_changes_nothing() -> None:
    text = changed(
        ("  h = f32[2] multiply(x, w0)",
         '  said = token[] custom-call(x), custom_call_target="PrintTensor", '
         'custom_call_has_side_effect=true, backend_config="{\\"tensor_name\\":\\"x\\"}"\n'
         '  seen = f32[2] custom-call(x), custom_call_target="Remap"\n'
         "  h = f32[2] multiply(seen, w0)"),
    )  # fmt: skip
    made, _ = evaluated(text, WEIGHTS, [(x,) for x in elements()])
    np.testing.assert_array_equal(made, trained()[0])
    assert "PrintTensor" not in TEXT
