"""`order-for-memory` on random graphs: less is live at once, dependences keep their order."""

from itertools import permutations
from random import Random

import pytest

from hloipu_compiler.analysis.live_bytes import buffers_of, live_bytes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.order_for_memory import (
    by_depth,
    by_greed,
    freed_early,
    made_late,
    predecessors,
)
from tests.support.passes import assert_same_values, entry, parsed

ANY_GAIN = "order-for-memory{least-gain-percent=1,least-gain-bytes=1}"


def peak(module: Module) -> int:
    buffers = buffers_of(module.entry, module.computation, {})
    return max(live_bytes(buffers, range(len(module.entry.instructions))))


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


LAYERS = entry("""\
  x = f32[8] parameter(0)
  again = f32[100] pad(x, f32[] constant(0)), padding=0_92
  a = f32[90] pad(x, f32[] constant(0)), padding=0_82
  b = f32[90] reverse(a), dimensions={0}
  late = f32[8] slice(b), slice={[0:8]}
  back = f32[100] reverse(again), dimensions={0}
  given = f32[100] reverse(back), dimensions={0}
  end = f32[8] slice(given), slice={[0:8]}
  gradient = f32[4] slice(back), slice={[0:4]}
  ROOT r = (f32[8], f32[8], f32[4]) tuple(late, end, gradient)""")
"""A value that is made long before it is read, and a gradient that comes long after it could."""


def test_values_come_late_and_gradients_early() -> None:
    """Nothing is alive for longer than others gain by it."""
    module = parsed(LAYERS)
    computation = module.entry
    buffers = buffers_of(computation, module.computation, {}, frozenset({2}))
    before = predecessors(computation, frozenset())
    text = range(len(computation.instructions))
    late = made_late(text, buffers, before)
    order = freed_early(late, buffers, before)
    names = [computation.instructions[at].name for at in order]
    assert names.index("again") == names.index("back") - 1
    assert names.index("gradient") == names.index("back") + 1
    lives = [live_bytes(buffers, x) for x in (text, late, order)]
    assert max(lives[0]) > max(lives[1]) >= max(lives[2])
    assert sum(lives[1]) > sum(lives[2])


@pytest.mark.parametrize("seed", range(20))
def test_moved_ops_keep_their_dependences(seed: int) -> None:
    module = parsed(random_graph(Random(seed), 24))
    computation = module.entry
    buffers = buffers_of(computation, module.computation, {})
    before = predecessors(computation, frozenset())
    text = range(len(computation.instructions))
    for order in (made_late(text, buffers, before), freed_early(text, buffers, before)):
        place = {at: n for n, at in enumerate(order)}
        assert sorted(order) == list(text)
        assert all(place[i] < place[at] for at in text for i in before[at])
