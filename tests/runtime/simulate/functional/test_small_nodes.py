"""Small nodes put off until others need them: which come one after another then."""

import numpy as np
import pytest

import hloipu
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.kernels.native.settings import is_there
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import StreamOut
from hloipu_runtime.simulate.functional import loop_turns
from hloipu_runtime.simulate.functional.loop_turns import with_small_together
from hloipu_runtime.simulate.functional.nodes import Node

SMALL, LARGE = 4, 1 << 10
"""Sizes of square arrays: a value whose name is a capital letter is a large one."""


@pytest.mark.parametrize(
    ("nodes", "ordered"),
    [
        ("ab CD bc", "CD ab bc"),
        ("ab CD bc EF", "CD EF ab bc"),
        ("ab bC de", "ab bC de"),  # needed at once
        ("ab CD dE be Ef", "CD dE Ef ab be"),  # what reads a large array is not put off
        ("ab C! bc", "ab C! bc"),  # nothing is put off beyond a stream
    ],
)
def test_small_nodes_wait_for_each_other(nodes: str, ordered: str) -> None:
    letters = "abcdefABCDEF"
    table = [Value("f32", (n, n)) for n in [SMALL] * 6 + [LARGE] * 6]

    def node(text: str) -> Node:
        read, written = letters.index(text[0]), letters.find(text[1])
        if written < 0:
            return Node(StreamOut("out", 0, read), text, (read,), ())
        return Node(Transpose((1, 0)), text, (read,), (written,))

    given = [node(text) for text in nodes.split()]
    assert " ".join(x.place for x in with_small_together(given, table)) == ordered


def test_what_is_put_together_of_nothing_is_no_view() -> None:
    text = """HloModule m
    ENTRY e {
      a = s32[0,3] parameter(0)
      b = s32[0,4] parameter(1)
      ROOT r = s32[0,7] concatenate(a, b), dimensions={1}
    }"""
    program = hloipu.compile(text, target="tiny")
    result = program.run(np.zeros((0, 3), np.int32), np.zeros((0, 4), np.int32))
    assert result.outputs[0].shape == (0, 7)


@pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")
@pytest.mark.parametrize("sizes", ["", "1", "1,1", "64"])
@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 0.3])
def test_powers_are_numpys_of_a_number(
    sizes: str, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a square root where the exponent is the number 0.5, and no array of it."""
    for threshold in ("FEWEST_SECONDS", "SECONDS_PER_NODE"):
        monkeypatch.setattr(loop_turns, threshold, 0.0)
    text = f"""HloModule m
    ENTRY e {{
      x = f32[{sizes}] parameter(0)
      a = f32[{sizes}] abs(x)
      b = f32[{sizes}] multiply(a, a)
      one = f32[] constant({exponent})
      e = f32[{sizes}] broadcast(one), dimensions={{}}
      c = f32[{sizes}] add(b, e)
      d = f32[{sizes}] abs(c)
      ROOT p = f32[{sizes}] power(d, e)
    }}"""
    program = hloipu.compile(text, cache=False)
    shape = tuple(map(int, sizes.split(","))) if sizes else ()
    for x in np.linspace(-3, 3, 40, dtype=np.float32):
        given = np.full(shape, x) if len(shape) != 1 else x + np.arange(*shape, dtype=np.float32)
        outputs = [program.run(given, fast=fast).outputs[0] for fast in (False, True)]
        assert outputs[0].tobytes() == outputs[1].tobytes(), x
