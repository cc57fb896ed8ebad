"""`compare-scattered`: sums of rows that were given one number, against the sums as written."""

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.passes.algebra.indexing import CompareScattered
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import opcodes, parsed

TEXT = """\
HloModule m
add {{
  a = {value}[] parameter(0)
  b = {value}[] parameter(1)
  ROOT r = {value}[] add(a, b)
}}
ENTRY e {{
  labels = {label}[6] parameter(0)
  given = {value}[6] parameter(1)
  zero = {value}[] constant({zero})
  i = {label}[{count}] iota(), iota_dimension=0
  places = {label}[6,{count}] broadcast(i), dimensions={{1}}
  wanted = {label}[6,{count}] broadcast(labels), dimensions={{0}}
  is_there = pred[6,{count}] compare(places, wanted), direction=EQ
  numbers = {value}[6,{count}] broadcast(given), dimensions={{0}}
  zeros = {value}[6,{count}] broadcast(zero), dimensions={{}}
  rows = {value}[6,{count}] select(is_there, numbers, zeros)
  negative = {value}[6,{count}] negate(rows)
  ROOT sums = {value}[6] reduce({summed}, zero), dimensions={{1}}, to_apply=add
}}
"""


@pytest.mark.parametrize("summed", ["rows", "negative"])
@pytest.mark.parametrize("value", ["f32", "f16", "s32"])
@pytest.mark.parametrize(
    ("label", "labels", "count", "is_summed"),
    [
        ("s32", [0, 3, -1, 4, 2**31 - 1, -(2**31)], 4, False),
        ("u8", [0, 3, 4, 255, 254, 7], 4, False),
        ("u8", [0, 3, 4, 255, 254, 7], 256, False),
        ("u8", [0, 3, 4, 255, 43, 44], 300, True),
        ("f32", [0.0, 1.5, -0.0, 3.0, 3.5, np.nan], 4, True),
        ("u32", [0, 1, 2, 3, 4, 5], 0, True),
    ],
)
def test_sums_are_those_of_whole_rows(
    label: str, labels: list[float], count: int, is_summed: bool, value: str, summed: str
) -> None:
    text = TEXT.format(label=label, count=count, value=value, summed=summed, zero=0)
    types = {"s32": np.int32, "u8": np.uint8, "f32": np.float32, "u32": np.uint32}
    module, places = parsed(text), np.array(labels, types[label])
    given = np.array([-0.0, 3, 2, -0.0, 5, -7]).astype({**types, "f16": np.float16}[value])
    made, _ = CompareScattered().run(module, Plan())
    assert ("reduce" in opcodes(made)) == is_summed
    (before,), (after,) = (evaluate_everywhere(x, places, given) for x in (module, made))
    assert before.tobytes() == after.tobytes()


def test_a_row_of_negative_zeros_is_summed() -> None:
    module = parsed(TEXT.format(label="s32", count=4, value="f32", summed="rows", zero=-0.0))
    assert CompareScattered().run(module, Plan())[0] is module
