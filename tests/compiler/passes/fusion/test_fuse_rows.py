"""`fuse-rows`: reductions and what works row by row become one op, and values stay to the bit."""

import hloipu
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.fusion.fuse_rows import rows_fused
from tests.support.passes import entry, opcodes, passed

PIPELINE = "inline-calls,eliminate-dead-code,fuse-rows,eliminate-dead-code"
REDUCERS = (
    "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
    "top {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT c = f32[] maximum(a, b)\n}"
)
SOFTMAX = """\
  x = f32[4,5] parameter(0)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[4] reduce(x, low), dimensions={1}, to_apply=top
  mb = f32[4,5] broadcast(m), dimensions={0}
  d = f32[4,5] subtract(x, mb)
  e = f32[4,5] exponential(d)
  s = f32[4] reduce(e, zero), dimensions={1}, to_apply=sum
  sb = f32[4,5] broadcast(s), dimensions={0}
"""


def fused(text: str) -> Module:
    """Return a module after the pass; its values are compared with those before."""
    return passed(entry(text, REDUCERS), PIPELINE, settled=False)


def inside(module: Module, number: int = 0) -> list[str]:
    """Return the opcodes of what one of the entry's fusions computes."""
    fusions = [x for x in module.entry.instructions if x.opcode == "fusion"]
    (body,) = module.called(fusions[number])
    return [x.opcode for x in body.instructions if x.parameter_number < 0]


def test_softmax_is_one_op() -> None:
    after = fused(SOFTMAX + "  ROOT r = f32[4,5] divide(e, sb)")
    assert opcodes(after) == ["fusion"]
    assert inside(after).count("reduce") == 2
    assert inside(after)[-1] == "divide"


def test_what_others_read_too_is_a_result() -> None:
    after = fused(
        SOFTMAX + "  q = f32[4,5] divide(e, sb)\n  t = f32[5,4] transpose(e), dimensions={1,0}\n"
        "  ROOT r = (f32[4,5], f32[5,4]) tuple(q, t)"
    )
    assert sorted(opcodes(after)) == sorted(
        ["fusion", "get-tuple-element", "get-tuple-element", "transpose", "tuple"]
    )


def test_a_producer_of_one_reduction_makes_a_fusion_with_it() -> None:
    after = fused(
        "  x = f32[4,5] parameter(0)\n  zero = f32[] constant(0)\n"
        "  q = f32[4,5] multiply(x, x)\n  s = f32[4] reduce(q, zero), dimensions={1}, "
        "to_apply=sum\n  b = f32[4,5] broadcast(s), dimensions={0}\n"
        "  ROOT r = f32[4,5] divide(x, b)"
    )
    assert opcodes(after) == ["fusion"]
    assert inside(after) == ["fusion", "broadcast", "divide"]


def test_no_path_leaves_a_region_and_comes_back() -> None:
    """The quotient needs a transpose of the exponentials: it is computed after their region."""
    after = fused(
        SOFTMAX.replace("[4,5]", "[5,5]").replace("[4]", "[5]")
        + "  t = f32[5,5] transpose(e), dimensions={1,0}\n  q = f32[5,5] divide(t, sb)\n"
        "  v = f32[5] reduce(q, zero), dimensions={1}, to_apply=sum\n"
        "  ROOT r = (f32[5], f32[5]) tuple(v, s)"
    )
    names = opcodes(after)
    assert names.count("fusion") == 2
    assert names.index("fusion") < names.index("transpose")
    assert inside(after, 0).count("reduce") == 2


def test_reductions_along_other_dimensions_are_apart() -> None:
    after = fused(
        "  x = f32[4,5] parameter(0)\n  zero = f32[] constant(0)\n"
        "  q = f32[4,5] multiply(x, x)\n  n = f32[4,5] negate(x)\n"
        "  s = f32[4] reduce(q, zero), dimensions={1}, to_apply=sum\n"
        "  t = f32[5] reduce(n, zero), dimensions={0}, to_apply=sum\n"
        "  ROOT r = (f32[4], f32[5]) tuple(s, t)"
    )
    assert opcodes(after) == ["fusion", "fusion", "tuple"]
    assert [inside(after, n)[-1] for n in range(2)] == ["reduce", "reduce"]


def test_reductions_of_one_array_are_together() -> None:
    after = fused(
        "  x = f32[4,5] parameter(0)\n  zero = f32[] constant(0)\n  low = f32[] constant(-inf)\n"
        "  s = f32[4] reduce(x, zero), dimensions={1}, to_apply=sum\n"
        "  t = f32[4] reduce(x, low), dimensions={1}, to_apply=top\n"
        "  ROOT r = (f32[4], f32[4]) tuple(s, t)"
    )
    assert opcodes(after).count("fusion") == 1
    assert inside(after).count("reduce") == 2


def test_a_reduction_alone_is_left_as_it_is() -> None:
    text = entry(
        "  x = f32[4,5] parameter(0)\n  zero = f32[] constant(0)\n"
        "  ROOT s = f32[4] reduce(x, zero), dimensions={1}, to_apply=sum",
        REDUCERS,
    )
    assert opcodes(passed(text, PIPELINE)) == ["constant", "reduce"]


def test_a_start_that_is_no_constant_keeps_a_reduction_out() -> None:
    after = fused(
        "  x = f32[4,5] parameter(0)\n  p = f32[] parameter(1)\n  q = f32[4,5] multiply(x, x)\n"
        "  ROOT s = f32[4] reduce(q, p), dimensions={1}, to_apply=sum"
    )
    assert opcodes(after) == ["multiply", "reduce"]


def test_regions_are_bounded() -> None:
    lines = ["  x = f32[4,5] parameter(0)", "  zero = f32[] constant(0)"]
    lines += [f"  v{n} = f32[4,5] negate({f'v{n - 1}' if n else 'x'})" for n in range(9)]
    lines += ["  ROOT s = f32[4] reduce(v8, zero), dimensions={1}, to_apply=sum"]
    text = entry("\n".join(lines), REDUCERS)
    after = passed(text, PIPELINE.replace("fuse-rows", "fuse-rows{most-ops=4}"), settled=False)
    assert opcodes(after)[-1] == "fusion"
    assert len(inside(after)) < 6


def test_rows_are_put_together_within_an_ipu_alone() -> None:
    module = hloipu.verify(entry(SOFTMAX + "  ROOT r = f32[4,5] divide(e, sb)", REDUCERS))
    name = module.entry.name
    ipus = {(name, x): 0 for x in ("m", "d", "e")} | {(name, x): 1 for x in ("s", "r")}
    made = rows_fused(module, 64, ipus)
    assert sorted(x.name for x in made.entry.instructions if x.opcode == "fusion") == ["e", "r"]
    one = rows_fused(module, 64, dict.fromkeys(ipus, 1))
    assert opcodes(one).count("fusion") == 1
