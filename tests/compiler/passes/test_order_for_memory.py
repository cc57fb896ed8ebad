"""`order-for-memory` on random graphs: less is live at once, dependences keep their order."""

from itertools import permutations
from random import Random

import pytest

from hloipu_compiler.analysis.live_bytes import buffers_of, live_bytes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.order_for_memory import by_depth, by_greed, predecessors
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
