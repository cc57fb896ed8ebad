"""`order-for-memory`: less is live at once, dependences and effects keep their order."""

from itertools import permutations
from random import Random

import pytest

from hloipu_compiler.analysis.live_bytes import buffers_of, live_bytes
from hloipu_compiler.analysis.order import effectful_computations
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.order_for_memory import by_depth, by_greed, predecessors
from tests.support.passes import assert_same_values, entry, opcodes, parsed, passed

ANY_GAIN = "order-for-memory{least-gain-percent=1,least-gain-bytes=1}"

WIDE = entry(
    """  x = f32[64] parameter(0)
  a = f32[64,64] broadcast(x), dimensions={0}
  a2 = f32[64,64] concatenate(a), dimensions={0}
  b2 = f32[64,64] reverse(a2), dimensions={0}
  c2 = f32[64,64] reverse(a2), dimensions={1}
  d2 = f32[64,64] reverse(a2), dimensions={0,1}
  z = f32[] constant(0)
  ra = f32[64] reduce(b2, z), dimensions={0}, to_apply=sum
  rb = f32[64] reduce(c2, z), dimensions={0}, to_apply=sum
  rc = f32[64] reduce(d2, z), dimensions={0}, to_apply=sum
  s = f32[64] add(ra, rb)
  ROOT t = f32[64] add(s, rc)""",
    """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
""",
)
"""Three large values are made before the first is reduced: one at a time would do."""


def peak(module: Module) -> int:
    buffers = buffers_of(module.entry, module.computation, {})
    return max(live_bytes(buffers, range(len(module.entry.instructions))))


def test_each_large_value_is_used_before_the_next_is_made() -> None:
    before, after = parsed(WIDE), passed(WIDE, ANY_GAIN, settled=False)
    # At first 4 arrays of 16 KiB at once; in the best order 2 and some vectors.
    assert peak(before) == 4 * 16_384
    assert peak(after) < 2 * 16_384 + 2_048
    found = opcodes(after)
    assert found.index("reduce") < len(found) - 1 - found[::-1].index("reverse")


def test_a_good_order_stays_and_so_does_the_module() -> None:
    module = passed(WIDE, ANY_GAIN, settled=False)
    again, _ = run_passes(module, None, ANY_GAIN)
    assert again is module


def test_a_small_gain_is_not_worth_another_order() -> None:
    module = parsed(WIDE)
    assert run_passes(module, None, "order-for-memory")[0] is module


def test_effects_stay_in_the_order_of_the_text() -> None:
    text = entry(
        """  t = token[] after-all()
  x = f32[64] parameter(0)
  big = f32[64,64] broadcast(x), dimensions={0}
  b = f32[64,64] concatenate(big), dimensions={0}
  o1 = token[] outfeed(x, t), outfeed_shape=f32[64]
  c = f32[64,64] reverse(b), dimensions={0}
  o2 = token[] outfeed(b, t), outfeed_shape=f32[64,64]
  o3 = token[] outfeed(c, t), outfeed_shape=f32[64,64]
  ROOT r = f32[64,64] reverse(c), dimensions={1}"""
    )
    module = parsed(text)
    after, _ = run_passes(module, None, "order-for-memory{least-gain-percent=0,least-gain-bytes=0}")
    names = [x.name for x in after.entry.instructions if x.opcode == "outfeed"]
    assert names == ["o1", "o2", "o3"]
    before = predecessors(module.entry, effectful_computations(module))
    position = module.entry.position
    assert position["o1"] in before[position["o2"]]
    assert position["o2"] in before[position["o3"]]


def random_graph(draw: Random, count: int) -> str:
    """Return a module of ops of different sizes that use each other at random."""
    lines = ["  v0 = f32[8] parameter(0)"]
    sizes = [8]
    for n in range(1, count):
        a, b = draw.randrange(n), draw.randrange(n)
        lines.append(
            f"  v{n} = f32[{sizes[a] + sizes[b]}] concatenate(v{a}, v{b}), dimensions={{0}}"
            if draw.random() < 0.6 and sizes[a] + sizes[b] < 500
            else f"  v{n} = f32[{sizes[a]}] reverse(v{a}), dimensions={{0}}"
        )
        sizes.append(int(lines[-1].split("[")[1].split("]")[0]))
    last = ", ".join(f"v{n}" for n in range(count // 2, count))
    total = sum(sizes[count // 2 :])
    lines.append(f"  ROOT r = f32[{total}] concatenate({last}), dimensions={{0}}")
    return entry("\n".join(lines))


@pytest.mark.parametrize("seed", range(20))
def test_every_order_found_is_one_and_values_stay(seed: int) -> None:
    module = parsed(random_graph(Random(seed), 30))
    buffers = buffers_of(module.entry, {}, {})
    before = predecessors(module.entry, frozenset())
    for order in (by_greed(buffers, before), by_depth(module.entry, buffers, before)):
        place = {at: n for n, at in enumerate(order)}
        assert sorted(order) == list(range(len(module.entry.instructions)))
        assert all(place[i] < place[at] for at in order for i in before[at])
    after, _ = run_passes(module, None, ANY_GAIN)
    assert peak(after) <= peak(module)
    assert_same_values(module, after)


def test_the_best_of_all_orders_is_not_far() -> None:
    """On graphs of 8 ops: the found orders against every order there is."""
    ratios = []
    for seed in range(8):
        module = parsed(random_graph(Random(seed), 7))
        buffers = buffers_of(module.entry, {}, {})
        before = predecessors(module.entry, frozenset())
        best = min(
            max(live_bytes(buffers, order))
            for order in permutations(range(len(before)))
            if all(order.index(i) < order.index(at) for at in order for i in before[at])
        )
        after, _ = run_passes(module, None, ANY_GAIN)
        ratios.append(peak(after) / best)
    assert max(ratios) <= 1.25
