"""Layers of a step: equal blocks, and what stands beside them with the same products."""

import hloipu
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.stages.loads import layers_of
from hloipu_compiler.partition.training.step_phases import FORWARD, Phases
from tests.support.cases import each

CONTRACTED = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def step(layers: int) -> Computation:
    """Return layers of three products, and one product; the first layer makes a mask for all."""
    lines = ["h = f32[64,64] parameter(0)", "m = s32[64] parameter(1)"]
    lines += ["v = f32[64,32] parameter(2)"]
    previous = "h"
    for n in range(layers):
        for number, sizes in enumerate(["64,128", "128,96", "96,64"]):
            lines += [f"w{n}_{number} = f32[{sizes}] parameter({3 + 3 * n + number})"]
        lines += [f"a{n} = f32[64,128] dot({previous}, w{n}_0), {CONTRACTED}"]
        lines += [f"t{n} = f32[64,128] tanh(a{n})"]
        if not n:
            lines += ["c = f32[64] convert(m)", "e = f32[64] exponential(c)"]
            lines += ["mask = f32[64,96] broadcast(e), dimensions={0}"]
        lines += [f"b{n} = f32[64,96] dot(t{n}, w{n}_1), {CONTRACTED}"]
        lines += [f"k{n} = f32[64,96] multiply(b{n}, mask)"]
        lines += [f"d{n} = f32[64,64] dot(k{n}, w{n}_2), {CONTRACTED}"]
        lines += [f"s{n} = f32[64,64] sine(d{n})"]
        previous = f"s{n}"
    lines += [f"ROOT last = f32[64,32] dot({previous}, v), {CONTRACTED}"]
    body = "\n  ".join(lines)
    return hloipu.verify(f"HloModule m\n\nENTRY e {{\n  {body}\n}}\n").entry


@each("layers", [4, 7])
def test_a_layer_in_whose_midst_a_mask_is_made_is_one(layers: int) -> None:
    entry = step(layers)
    phases = Phases((FORWARD,) * len(entry.instructions), (), (), (), (), -1, (), ())
    of_op = layers_of(entry, phases)
    names = [
        {of_op.get(f"{letter}{layer}") for letter in ("a", "t", "b", "k", "d")}
        for layer in range(layers)
    ]
    assert all(len(each_layer) == 1 for each_layer in names)
    assert len(set.union(*names) - {None}) == layers
    assert {of_op[name] for name in ("c", "e", "mask")} == names[0]
    assert "last" not in of_op  # one product is no layer
