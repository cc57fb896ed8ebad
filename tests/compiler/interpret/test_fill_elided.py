"""Constants whose values were left out: filled for their use, everything else kept."""

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.interpret.random_inputs import fill_elided
from hloipu_compiler.ir.graph import Module
from tests.support.arrays import Array, f32

TEXT = """HloModule m
inner {
  x = f32[3] parameter(0)
  w = f32[3] constant({...})
  ROOT r = f32[3] add(x, w)
}
ENTRY e {
  t = f32[50,4] constant({...})
  i = s32[9,1] constant({...})
  g = f32[9,4] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,4}
  h = bf16[6] constant({...})
  k = f32[3] constant({1, 2, 3})
  c = f32[3] call(k), to_apply=inner
  ROOT r = (f32[9,4], bf16[6], f32[3]) tuple(g, h, c)
}
"""


def values(module: Module) -> dict[str, Array]:
    return {
        x.name: constant_leaves(x)[0]
        for computation in module.computations
        for x in computation.instructions
        if x.opcode == "constant"
    }


def test_every_elided_constant_gets_values_that_suit_its_use() -> None:
    found = values(fill_elided(parse(TEXT), 0))
    assert {name: x.shape for name, x in found.items()} == {
        "t": (50, 4), "i": (9, 1), "h": (6,), "k": (3,), "w": (3,),
    }  # fmt: skip
    assert found["i"].min() >= 0
    assert found["i"].max() < 50
    assert len(set(found["i"].ravel().tolist())) > 1
    assert found["k"].tolist() == [1, 2, 3]
    assert np.unique(found["t"]).size == 200


def test_the_same_seed_gives_the_same_values() -> None:
    module = parse(TEXT)
    one, same, other = (values(fill_elided(module, seed)) for seed in (5, 5, 6))
    assert all(one[name].tobytes() == same[name].tobytes() for name in one)
    assert all(one[name].tobytes() != other[name].tobytes() for name in "twh")


def test_a_filled_module_evaluates() -> None:
    filled = fill_elided(parse(TEXT), 1)
    given = values(filled)
    rows, narrow, summed = evaluate(filled)
    assert (rows == given["t"][given["i"][:, 0]]).all()
    assert (narrow.astype(np.float32) == given["h"]).all()
    assert (summed == given["w"] + f32([1, 2, 3])).all()


def test_the_module_given_is_not_changed() -> None:
    module = parse(TEXT)
    before = module.without_places()
    fill_elided(module, 0)
    assert module.without_places() == before
    assert module.entry["t"].literal is not None
    assert module.entry["t"].literal.is_elided
