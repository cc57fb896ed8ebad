"""Outlining of drawn layers: they share a block, and values stay; small modules are goldens."""

from random import Random
from types import MappingProxyType

import numpy as np
import pytest

from hloipu_compiler.analysis import equal_blocks
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.outline_blocks import outlining_weight
from hloipu_compiler.plan.own_numbers import own_numbers
from hloipu_compiler.plan.plan import Plan
from tests.support.layered_texts import layered_text
from tests.support.passes import SUM, assert_same_values, entry, parsed

ALL = "outline-blocks{least-code=0,least-block=100,least-saved=1}"


def calls(module: Module) -> list[str]:
    return [x.attributes.called[0] for x in module.entry.instructions if x.opcode == "call"]


def code(module: Module) -> int:
    return sum(max(0, outlining_weight(x)) for c in module.computations for x in c.instructions)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_values_stay_and_layers_share_a_block(seed: int, backward: bool) -> None:
    text = layered_text(seed, 4, backward=backward, shared=seed % 2 == 0, between=seed % 3 == 0)
    before = parsed(text)
    after, _ = run_passes(before, None, ALL)
    assert_same_values(before, after)
    assert len(calls(after)) >= 2 + backward
    assert len(set(calls(after))) < len(calls(after))
    assert code(after) < code(before)


def test_a_block_hands_back_what_others_read_and_no_more() -> None:
    after, _ = run_passes(parsed(layered_text(1, 4)), None, ALL)
    block = after.computation[calls(after)[0]]
    # The running value goes to the next layer, the second op of two layers into the result.
    assert len(block.instructions[block.root].operands) == 2


@pytest.mark.parametrize("rows", [256, 7], ids=["large values", "large gradients"])
def test_a_layer_and_its_gradient_share_a_block(rows: int) -> None:
    """Gradients of weights stand last in texts; brought forward, they are in their layer's block.

    As they stand, all layers' values wait for the end, and gradients have blocks of their own.
    Where they are larger than what they free, they are added up, transposed, as they come. The
    order in which a layer's gradients stand in the text makes no difference.
    """
    layers = range(5)
    lines = ["  x0 = f32[ROWS,8] parameter(0)"]
    for n in layers:
        lines += [
            f"  w{n} = f32[8,8] parameter({n + 1})",
            f"  y{n} = f32[ROWS,8] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}",
            f"  x{n + 1} = f32[ROWS,8] tanh(y{n})",
        ]
    for n in layers:
        both = [
            f"  t{n} = f32[8,8] dot(x{n}, x{n + 1}), lhs_contracting_dims={{0}}, "
            f"rhs_contracting_dims={{0}}\n  g{n} = f32[8,8] transpose(t{n}), dimensions={{1,0}}",
            f"  s{n} = f32[1,8] slice(x{n + 1}), slice={{[0:1], [0:8]}}",
        ]
        lines += both if n % 2 else both[::-1]
    types = ", ".join(kind for kind in ("f32[8,8]", "f32[1,8]", "f32[8,8]") for _ in layers)
    names = ", ".join(f"{kind}{n}" for kind in "gsw" for n in layers)
    text = "\n".join([*lines, f"  ROOT r = ({types}) tuple({names})"])
    before = parsed(entry(text.replace("ROWS", str(rows))))
    plan = Plan(added_up=MappingProxyType({before.entry.name: frozenset(range(2 * len(layers)))}))
    first = "order-for-memory{only-frees=true,least-gain-bytes=1}"

    def handed_out(passes: str) -> list[int]:
        after, _ = run_passes(before, plan, passes)
        assert_same_values(before, after)
        blocks = [after.computation[name] for name in dict.fromkeys(calls(after))]
        return [byte_count(x.instructions[x.root].shape) for x in blocks]

    layer, gradient = rows * 8 * 4, 8 * 8 * 4
    assert handed_out(ALL)[0] == layer
    assert handed_out(f"{first},{ALL}") == [layer + gradient + 8 * 4]


@pytest.mark.parametrize("again", [False, True], ids=["once", "made again"])
def test_what_layers_share_and_constants_end_no_block(again: bool) -> None:
    """A mask stands in the first layer that reads it, or in some; constants differ by layer.

    Layers are handed the mask as it is, and spread it themselves.
    """
    layers = range(5)
    lines = ["  x0 = f32[256,8] parameter(0)", "  p = f32[256] parameter(1)"]
    for n in layers:
        mask = 3 if again and n > 2 else 0
        lines += [
            f"  w{n} = f32[8,8] parameter({n + 2})",
            f"  y{n} = f32[256,8] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}",
            *([f"  m{n} = f32[256] tanh(p)"] if n == mask else []),
            *([f"  s{n} = f32[256,8] broadcast(m{n}), dimensions={{0}}"] if n == mask else []),
            f"  c{n} = f32[8] constant({{{', '.join(str(n + k) for k in range(8))}}})",
            f"  b{n} = f32[256,8] broadcast(c{n}), dimensions={{1}}",
            f"  z{n} = f32[256,8] multiply(y{n}, s{mask})",
            f"  x{n + 1} = f32[256,8] add(z{n}, b{n})",
        ]
    before = parsed(entry("\n".join([*lines, "  ROOT r = (f32[256,8]) tuple(x5)"])))
    after, _ = run_passes(before, None, ALL)
    assert_same_values(before, after)
    assert len(calls(after)) == len(layers)
    (block,) = {after.computation[name] for name in calls(after)}
    given = [block.instructions[at].shape for at in block.parameters]
    assert sorted(map(byte_count, given)) == [8 * 4, 8 * 8 * 4, 256 * 4, 256 * 8 * 4]


@pytest.mark.parametrize("factors", [(4, 4, 4), (4, 0, 2)], ids=["equal", "other places"])
def test_blocks_know_their_participants_part(factors: tuple[int, ...]) -> None:
    """Where a replica's part begins is reckoned within blocks; handed over, it would be data."""
    lines = ["  me = u32[] replica-id()"]
    for n, factor in enumerate(factors):
        lines += [
            f"  w{n} = f32[8] parameter({2 * n})",
            f"  g{n} = f32[4] parameter({2 * n + 1})",
            f"  c{n} = u32[] constant({factor})",
            f"  at{n} = u32[] multiply(me, c{n})",
            f"  p{n} = f32[4] dynamic-slice(w{n}, at{n}), dynamic_slice_sizes={{4}}",
            f"  x{n} = f32[4] subtract(p{n}, g{n})",
        ]
    results = ", ".join("f32[4]" for _ in factors), ", ".join(f"x{n}" for n in range(len(factors)))
    before = parsed(entry("\n".join([*lines, f"  ROOT r = ({results[0]}) tuple({results[1]})"])))
    after, _ = run_passes(before, None, ALL)
    (block,) = {after.computation[name] for name in calls(after)}
    assert len(calls(after)) == len(factors)
    known = own_numbers(block, replicas=2, partitions=1).parts
    assert list(known.values()) == ([((0,), (4,))] if len(set(factors)) == 1 else [])


def test_what_layers_share_is_made_of_nothing_in_a_layer() -> None:
    """A mask of what the first layer computes is made once, and so is that."""
    layers = range(4)
    lines = ["  x0 = f32[256,8] parameter(0)"]
    for n in layers:
        lines += [
            f"  w{n} = f32[8,8] parameter({2 * n + 1})",
            f"  p{n} = f32[256] parameter({2 * n + 2})",
            f"  u{n} = f32[256] tanh(p{n})",
            *(["  m = f32[256] negate(u0)"] if not n else []),
            f"  y{n} = f32[256,8] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}",
            f"  s{n} = f32[256,8] broadcast(m), dimensions={{0}}",
            f"  z{n} = f32[256,8] multiply(y{n}, s{n})",
            f"  b{n} = f32[256,8] broadcast(u{n}), dimensions={{0}}",
            f"  x{n + 1} = f32[256,8] add(z{n}, b{n})",
        ]
    before = parsed(entry("\n".join([*lines, "  ROOT r = (f32[256,8]) tuple(x4)"])))
    after, _ = run_passes(before, None, ALL)
    assert_same_values(before, after)
    names = [x.name for x in after.entry.instructions]
    assert len(set(names)) == len(names)
    assert calls(after)


def test_a_stage_and_what_is_computed_of_it_again_share_a_block() -> None:
    """The backward stage reads the same input, and what it computes besides stands behind.

    An op that frees a few bytes is not moved into the midst; nor is one that would free the input,
    were it not read again.
    """
    chain = """
      x = f32[4096,16] parameter(0)
      w = f32[16,16] parameter(1)
      v = f32[16,4] parameter(2)
      zero = f32[] constant(0)
      zeros = f32[16] broadcast(zero), dimensions={}
      y = f32[4096,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      m = f32[16] reduce(y, zero), dimensions={0}, to_apply=sum
      n = f32[16] maximum(m, zeros)
      s = f32[4096,16] broadcast(n), dimensions={1}
      t = f32[4096,16] multiply(y, s)
      z = f32[4096,4] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    before = parsed(f"""
    HloModule steps
    sum {{
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] add(a, b)
    }}
    forward {{{chain}
      ROOT r = (f32[4096,16], f32[4096,4]) tuple(t, z)
    }}
    backward {{{chain}
      e = pred[16] compare(m, n), direction=EQ
      f = f32[16] convert(e)
      g = f32[4096,16] broadcast(f), dimensions={{1}}
      h = f32[4096,16] multiply(g, t)
      i = f32[16,16] dot(x, h), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
      ROOT r = (f32[16,16], f32[4096,4]) tuple(i, z)
    }}
    ENTRY main {{
      x = f32[4096,16] parameter(0)
      w = f32[16,16] parameter(1)
      v = f32[16,4] parameter(2)
      first = (f32[4096,16], f32[4096,4]) call(x, w, v), to_apply=forward
      second = (f32[16,16], f32[4096,4]) call(x, w, v), to_apply=backward
      a = f32[4096,16] get-tuple-element(first), index=0
      b = f32[16,16] get-tuple-element(second), index=0
      ROOT r = (f32[4096,16], f32[16,16]) tuple(a, b)
    }}""")
    frees = (
        "order-for-memory{least-gain-percent=0,least-gain-bytes=1,only-frees=true,few-bytes=11776}"
    )
    after, _ = run_passes(before, None, f"{frees},{ALL}")
    assert_same_values(before, after)
    called = [
        [x.attributes.called for x in after.computation[name].instructions if x.opcode == "call"]
        for name in ("forward", "backward")
    ]
    assert called[0] == called[1]
    assert len(called[0]) == 1


@pytest.mark.parametrize("parts_reductions", [False, True])
def test_a_product_alone_is_a_fine_block_and_a_reduction_where_asked(
    parts_reductions: bool,
) -> None:
    """Reductions of a layer become one vertex where they are fused, which blocks would part."""
    lines = ["  x0 = f32[256,16] parameter(0)", "  zero = f32[] constant(0)"]
    for n, op in enumerate(("tanh", "sine", "cosine", "exponential")):
        lines += [
            f"  w{n} = f32[16,16] parameter({n + 1})",
            f"  y{n} = f32[256,16] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}",
            f"  z{n} = f32[256,16] {op}(y{n})",
            f"  a{n} = f32[16] reduce(z{n}, zero), dimensions={{0}}, to_apply=sum",
            f"  x{n + 1} = f32[256,16] {op}(z{n})",
        ]
    sums = ", ".join(f"a{n}" for n in range(4))
    lines.append(f"  ROOT r = (f32[256,16]{', f32[16]' * 4}) tuple(x4, {sums})")
    before = parsed(entry("\n".join(lines), SUM))
    fine = "least-code=0,least-block=1200,least-saved=1200"
    parts = str(parts_reductions).lower()
    after, _ = run_passes(before, None, f"outline-blocks{{{fine},parts-reductions={parts}}}")
    assert_same_values(before, after)
    blocks = {after.computation[name] for name in calls(after)}
    opcodes = {x.opcode for b in blocks for x in b.instructions if x.parameter_number < 0}
    assert opcodes - {"constant"} == ({"dot", "reduce"} if parts_reductions else {"dot"})
    assert len(calls(after)) == (8 if parts_reductions else 4)


def test_many_layers_take_linear_work() -> None:
    after, _ = run_passes(parsed(layered_text(3, 60)), None, ALL)
    assert len(calls(after)) >= 58
    assert len(set(calls(after))) == 1


@pytest.mark.parametrize("seed", range(6))
def test_no_stretch_saves_more_than_its_bound(seed: int) -> None:
    """Stretches of drawn layers, with more and more of the text taken."""
    drawn = Random(seed)
    module = parsed(layered_text(seed, 6, backward=seed % 2 == 0, between=seed % 3 == 0))
    text = equal_blocks._Text([module.entry], outlining_weight, 1)
    order, stretches = equal_blocks._stretches(text.letters)
    bounds: list[int] = []
    saved: list[int] = []
    for _ in range(4):
        for stretch in stretches:
            starts = np.sort(order[stretch.first : stretch.end])
            choice = text._choice(starts, stretch.length)
            bounds.append(text._bound(order, stretch))
            saved.append(text._placed(choice, stretch.length).saved if choice.starts else 0)
        start = drawn.randrange(len(text.letters) - 5)
        text._take(equal_blocks._Choice(0, (start,), 5))
    assert max(saved) > 0
    assert all(bound >= each for bound, each in zip(bounds, saved, strict=True))


def test_of_a_chain_of_equal_ops_few_stretches_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0
    choice = equal_blocks._Text._choice

    def counting(text: equal_blocks._Text, starts: equal_blocks.Numbers, whole: int) -> object:
        nonlocal looked_at
        looked_at += 1
        return choice(text, starts, whole)

    monkeypatch.setattr(equal_blocks._Text, "_choice", counting)
    lines = [f"  x{n + 1} = f32[64] sine(x{n})" for n in range(3000)]
    module = parsed(
        entry("\n".join(["  x0 = f32[64] parameter(0)", *lines, "  ROOT r = f32[64] copy(x3000)"]))
    )
    blocks = equal_blocks.equal_blocks([module.entry], lambda _: 400, 2400, 7000)
    assert [len(x.occurrences) * len(x.occurrences[0].positions) for x in blocks] == [3000]
    assert looked_at < 30
