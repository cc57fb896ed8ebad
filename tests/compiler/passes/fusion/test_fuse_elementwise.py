"""`fuse-elementwise`: ops that only each other read become one, and values stay to the bit."""

from hloipu_compiler.ir.graph import Module
from tests.support.passes import entry, opcodes, passed


def fused(module: Module) -> list[str]:
    """Return the opcodes of what the module's only fusion computes."""
    (fusion,) = (x for x in module.entry.instructions if x.opcode == "fusion")
    (body,) = module.called(fusion)
    return [x.opcode for x in body.instructions if x.parameter_number < 0]


def test_a_chain_with_a_broadcast_is_one_op() -> None:
    text = entry(
        "  p = f32[2,3] parameter(0)\n  q = f32[3] parameter(1)\n"
        "  b = f32[2,3] broadcast(q), dimensions={1}\n  a = f32[2,3] add(p, b)\n"
        "  c = f32[] constant(2)\n  d = f32[2,3] broadcast(c), dimensions={}\n"
        "  m = f32[2,3] multiply(a, d)\n  ROOT r = f32[2,3] tanh(m)"
    )
    after = passed(text, "inline-calls,fuse-elementwise,eliminate-dead-code", settled=False)
    assert opcodes(after) == ["fusion"]
    assert fused(after) == ["broadcast", "constant", "broadcast", "add", "multiply", "tanh"]
    assert len(after.entry.instructions[after.entry.root].operands) == 2


def test_a_value_read_twice_within_the_group_stays_one() -> None:
    text = entry(
        "  p = f32[4] parameter(0)\n  a = f32[4] sine(p)\n  b = f32[4] multiply(a, a)\n"
        "  c = f32[4] negate(a)\n  ROOT r = f32[4] add(b, c)"
    )
    after = passed(text, "inline-calls,fuse-elementwise", settled=False)
    assert opcodes(after) == ["fusion"]
    assert fused(after) == ["sine", "multiply", "negate", "add"]


def test_a_value_that_others_read_is_kept() -> None:
    text = entry(
        "  p = f32[4] parameter(0)\n  a = f32[4] sine(p)\n  b = f32[4] negate(a)\n"
        "  ROOT r = (f32[4], f32[4]) tuple(a, b)"
    )
    assert opcodes(passed(text, "inline-calls,fuse-elementwise")) == ["sine", "negate", "tuple"]


def test_no_path_leaves_a_group_and_comes_back() -> None:
    """`s` goes by way of a reverse into `r`: a group of all three would read what it makes."""
    text = entry(
        "  p = f32[4] parameter(0)\n  s = f32[4] sine(p)\n"
        "  v = f32[4] reverse(s), dimensions={0}\n  ROOT r = f32[4] add(s, v)"
    )
    assert opcodes(passed(text, "inline-calls,fuse-elementwise")) == ["sine", "reverse", "add"]


def test_groups_are_bounded() -> None:
    lines = ["  x0 = f32[4] parameter(0)"]
    lines += [f"  x{n} = f32[4] negate(x{n - 1})" for n in range(1, 8)]
    text = entry("\n".join([*lines, "  ROOT r = f32[4] negate(x7)"]))
    after = passed(text, "inline-calls,fuse-elementwise{most-ops=4}", settled=False)
    assert opcodes(after) == ["fusion", "fusion"]


def test_numbers_of_loops_are_fused_and_reducers_are_left_alone() -> None:
    text = entry(
        "  p = f32[8] parameter(0)\n  z = f32[] constant(0)\n"
        "  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=two",
        "two {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  c = f32[] add(a, b)\n"
        "  d = f32[] negate(c)\n  ROOT e = f32[] negate(d)\n}",
    )
    assert opcodes(passed(text, "inline-calls,fuse-elementwise")) == ["constant", "reduce"]
