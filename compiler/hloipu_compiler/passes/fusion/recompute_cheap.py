"""Recomputes cheap values at late uses instead of keeping them.

A value is cut where nothing reads it for a while in which much is live: its later readers get a
copy of the few elementwise ops that made it, from values that are live there anyhow, or so small
that they may live longer, such as the means of a norm. Every bit stays the same. (Chen et al.:
Training Deep Nets with Sublinear Memory Cost, 2016, drop and recompute whole segments; this drops
what costs next to nothing.)
"""

from bisect import bisect_left, insort
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

from hloipu_compiler.analysis.live_bytes import (
    Buffers,
    Running,
    buffers_of,
    extra_bytes,
    live_bytes,
)
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.reached import reached

CHEAP = frozenset(
    name
    for name, op in OPS.items()
    if Trait.ELEMENTWISE in op.traits and not op.traits & (Trait.LEGACY | Trait.RANDOM)
) | {"iota", "broadcast", "reshape"}
"""Ops whose result costs about as much to make as to copy."""
_SMALL = 1000
"""What is less than a part so small of the peak stays, and may stay longer."""


def cheap_values_recomputed(
    module: Module, most_ops: int, full_percent: int, least_gap: int = 1
) -> Module:
    """Return the module with cheap values made again; the same one where none pays."""
    now = dict(module.computation)
    extra: dict[str, int] = {}
    changed = False
    for name in Running(module).names:
        old = now[name]
        buffers = buffers_of(old, now, extra)
        cut_computation = _Cutting(old, buffers, most_ops, full_percent, least_gap).recomputed()
        extra[name] = extra_bytes(buffers, range(len(old.instructions)))
        if cut_computation is not None:
            now[name] = cut_computation
            changed = True
    if not changed:
        return module
    return replace(module, computations=tuple(now[c.name] for c in module.computations))


class _Cutting:
    """One computation, and the cuts found so far."""

    def __init__(
        self,
        computation: Computation,
        buffers: Buffers,
        most_ops: int,
        full_percent: int,
        least_gap: int,
    ) -> None:
        self.computation = computation
        self.buffers = buffers
        self.most_ops = most_ops
        self.least_gap = least_gap
        count = len(computation.instructions)
        live = live_bytes(buffers, range(count))
        self.peak = max(live, default=0)
        full = [b * 100 >= full_percent * self.peak for b in live]
        self.full_before = [0, *accumulate(full)]
        """How many instructions before each position run while memory is nearly full."""
        self.uses: list[list[int]] = [[] for _ in buffers.sizes]
        """Positions at which each buffer is read, ascending; reading by copies comes in."""
        for at, read in enumerate(buffers.reads):
            for b in read:
                self.uses[b].append(at)
        for b in buffers.kept:
            self.uses[b].append(count)
        self.own = self._own_buffers()
        self.cuts: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        """Position before which copies go -> value, and the ops to copy in order."""

    def _own_buffers(self) -> dict[int, int]:
        """Return the buffer of each cheap op that makes one."""
        return {
            at: self.buffers.makes[at][0]
            for at, op in enumerate(self.computation.instructions)
            if len(self.buffers.makes[at]) == 1 and _is_cheap(op)
        }

    def recomputed(self) -> Computation | None:
        """Return the computation with copies, None where nothing is to be gained."""
        for at, b in self.own.items():
            if not self._is_small(at):
                self._cut(at, b)
        return self._rebuilt() if self.cuts else None

    def _cut(self, at: int, b: int) -> None:
        """Cut a value at the first gap over which it is kept for nothing while memory is full."""
        uses = self.uses[b]
        direct = set(self.computation.users[at])
        for before, after in zip((at, *uses), uses, strict=False):
            if after >= len(self.computation.instructions):
                return
            if self.full_before[after] - self.full_before[min(before + 1, after)] < self.least_gap:
                continue
            late = [use for use in uses if use >= after]
            if not direct.issuperset(late):
                return  # what reads it through a reshape, say, would need that again as well
            ops = self._ops(at, after)
            if ops is None:
                return
            self.cuts.setdefault(after, []).append((at, ops))
            for op in ops:
                for leaf in self.computation.instructions[op].operands:
                    if leaf not in ops:
                        self._pin(leaf, after)
            del uses[bisect_left(uses, after) :]
            return

    def _ops(self, at: int, place: int) -> tuple[int, ...] | None:
        """Return the ops that make a value from what is live at a place; None: there are none."""

        def missing(op: int) -> list[int]:
            operands = self.computation.instructions[op].operands
            return [i for i in operands if not (self._is_live(i, place) or self._is_small(i))]

        ops: list[int] = []
        for op in reached([at], missing):
            if len(ops) == self.most_ops or not _is_cheap(self.computation.instructions[op]):
                return None
            ops.append(op)
        return tuple(sorted(ops))

    def _is_live(self, at: int, place: int) -> bool:
        return all(
            self.uses[b] and self.uses[b][-1] >= place
            for part in self.buffers.holds[at]
            for b in part
        )

    def _is_small(self, at: int) -> bool:
        """Whether what a value keeps alive is nothing beside the peak."""
        kept_alive = {b for part in self.buffers.holds[at] for b in part}
        return sum(self.buffers.sizes[b] for b in kept_alive) * _SMALL < self.peak

    def _pin(self, at: int, place: int) -> None:
        """Note that a value is read at a place."""
        for part in self.buffers.holds[at]:
            for b in part:
                insort(self.uses[b], place)

    def _rebuilt(self) -> Computation:
        old, draft = self.computation.instructions, Rewriting(self.computation)
        place = draft.place
        for at, instruction in enumerate(old):
            for value, ops in self.cuts.get(at, ()):
                copies: dict[int, int] = {}
                for op in ops:
                    operands = tuple([copies.get(i, place[i]) for i in old[op].operands])
                    copy = with_operands(old[op], operands)
                    copies[op] = draft.append(copy._replace(name=draft.fresh_name(copy.name)))
                place[value] = copies[value]
            draft.keep(instruction)
        return draft.finish()


def _is_cheap(op: Instruction) -> bool:
    """Whether an op may be run again: nothing but arithmetic on arrays, held in place by nobody."""
    return (
        op.opcode in CHEAP
        and isinstance(op.shape, ArrayShape)
        and op.shape.is_static
        and not control_predecessors(op)
    )


@register
@dataclass(frozen=True, slots=True)
class RecomputeCheap(Pass):
    """Makes cheap values again where they are used late, in place of keeping them while much is."""

    name: ClassVar[str] = "recompute-cheap"
    most_ops: int = 12
    """Ops that may be run again for one value."""
    full_percent: int = 50
    """Share of the most bytes ever live from which on a value is not kept unread."""
    least_gap: int = 1
    """Ops, while so much is live, for which a value has to be unread."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with cheap values made again."""
        given = module, self.most_ops, self.full_percent, self.least_gap
        return cheap_values_recomputed(*given), plan
