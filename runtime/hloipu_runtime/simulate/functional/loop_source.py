"""Writing loops of the logical form as text in Python: what is carried, around calls of blocks."""

from collections.abc import Sequence

from hloipu_runtime.program.steps import Repeat, RepeatWhile, ValueId
from hloipu_runtime.simulate.functional.logical_form import Node


def loop_lines(
    what: Repeat | RepeatWhile, node: Node, blocks: Sequence[str], iterations: str
) -> list[str]:
    """Return the lines of a loop that goes through `iterations`.

    `blocks` are the names of its body, or condition and body.
    """
    carried, left = what.carried, node.block_values[0]
    first, last = _loop_frees(node)
    initial, turn = [x.initial for x in carried], [x.turn for x in carried]
    following, final = [x.following for x in carried], [x.final for x in carried]
    lines = _moved(initial, first, turn)
    lines.append(f"for _ in {iterations}:")
    if isinstance(what, RepeatWhile):
        lines.append(f"    {blocks[0]}(v, host, counts)")
        lines.append(f"    if not v[{what.predicate_value}]: break")
    lines.append(f"    {blocks[-1]}(v, host, counts)")
    lines += [f"    {line}" for line in _moved(following, left, turn)]
    return lines + _moved(turn, (*last, *turn), final)


def _moved(
    origins: Sequence[ValueId], dropped: Sequence[ValueId], targets: Sequence[ValueId]
) -> list[str]:
    """Return what hands arrays on, all at once, and drops values before they arrive."""
    lines = []
    if origins:
        lines.append(f"x = {', '.join(f'v[{n}]' for n in origins)},")
    if dropped:
        lines.append(" = ".join(f"v[{n}]" for n in dropped) + " = None")
    if targets:
        lines.append(f"{', '.join(f'v[{n}]' for n in targets)}, = x")
        lines.append("x = None")
    return lines


def _loop_frees(node: Node) -> tuple[tuple[ValueId, ...], tuple[ValueId, ...]]:
    """Return what dies as a loop begins, and what only once it has ended: turns read it."""
    outside = frozenset[ValueId]().union(*(block.outside for block in node.blocks))
    first = tuple(v for v in node.frees if v not in outside)
    return first, tuple(v for v in node.frees if v in outside)
