"""Minimum cut between positions of a pipeline: what is sent, and what the reader computes again.

A position receives the least it can: of what its ops read, values that cheap ops make from smaller
ones (broadcasts of masks, converted and compared values) are computed where they are read. Which
values a position receives is a minimum cut between what other positions make and what its own ops
read: each value costs the bytes that are handed on, or a share of them for the op that computes it
again from what it reads, which is then to be there, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, byte_count
from hloipu_compiler.partition.stages.backward_places import FEW_ELEMENTS
from hloipu_compiler.partition.stages.minimum_cut import INFINITE, MinimumCut
from hloipu_compiler.partition.training.step_phases import FREE, Phases
from hloipu_compiler.passes.algebra.fold_transposes import is_folded

_CHEAP = frozenset("constant iota broadcast reshape bitcast partition-id replica-id".split())
VIEWS = frozenset("broadcast iota constant reshape bitcast".split())
"""Made wherever they are read, of what they show, which is no larger."""
_LIGHT = frozenset(
    "abs add and clamp compare convert maximum minimum multiply negate not or select sign "
    "shift-left shift-right-arithmetic shift-right-logical subtract xor".split()
)
_MAY_ACT = frozenset("call conditional custom-call while".split())
_UNIT = 16
"""Units of cost of a byte that is handed on."""
_OVER_LINKS = 1
"""Of a byte that is computed again, where the value would cross links: these move about 1/16 of
what vertices of all tiles write. Assumed."""
_ON_IPU = {"convert": 4}
"""The same where the value would wait on its own IPU, which takes memory and two local copies."""
_ON_IPU_OTHERS = 8


@dataclass(frozen=True)
class Handing:
    """A step whose ops have places: positions of a pipeline, in their order."""

    entry: Computation
    phases: Phases
    written_out: Sequence[int]
    """Of each op, whether it is computed wherever it is read, in all places."""
    place: Sequence[int]
    """Of each op, -1 for those that run in none."""
    bodies: Sequence[Sequence[int]]
    """The ops that each place computes, with those that it computes again."""
    ipus: Sequence[int]
    """Of each place, or -1: what is no position, but comes before or after all of them."""
    stages: Sequence[tuple[str, int]] = ()
    """Phase and stage of each place, where branches have places of their own; they may run at once,
    and hand each other nothing on."""

    def remade(self) -> list[frozenset[int]]:
        """Return the ops that each place computes again beside those it has."""
        reads = [closure(self.entry, self.written_out, body)[1] for body in self.bodies]
        local: dict[int, set[int]] = {}
        for ipu, read in zip(self.ipus, reads, strict=True):
            local.setdefault(ipu, set()).update(read)
        return [
            self._remade(n, read, local[self.ipus[n]]) if self.ipus[n] >= 0 else frozenset[int]()
            for n, read in enumerate(reads)
        ]

    def live(
        self, remade: Sequence[frozenset[int]], results: Iterable[int]
    ) -> list[tuple[list[int], list[int]]]:
        """Return the ops that each place has to compute, and those whose results it hands out.

        `results`: what is handed out in the end.
        """
        wanted, computed_and_handed = set(results), list[tuple[list[int], list[int]]]()
        for n in range(len(self.bodies) - 1, -1, -1):
            body = {*self.bodies[n], *remade[n]}
            handed = sorted(i for i in body if self.place[i] == n and i in wanted)
            used = {i for i in body if self._acts(i)}.union(handed)
            waiting = list(used)
            while waiting:
                op = self.entry.instructions[waiting.pop()]
                # What is written out here may read what is computed here.
                for i in op.operands:
                    if i not in used and (i in body or self.written_out[i]):
                        used.add(i)
                        waiting.append(i)
            kept = sorted(used & body)
            wanted.update(closure(self.entry, self.written_out, kept)[1])
            computed_and_handed.append((kept, handed))
        return computed_and_handed[::-1]

    def _acts(self, position: int) -> bool:
        """Whether an op may do more than make its value."""
        opcode = self.entry.instructions[position].opcode
        return opcode in _MAY_ACT or Trait.SIDE_EFFECT in OPS[opcode].traits

    def relays(self, reads: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
        """Return for places and values that come over links which earlier place has them already.

        That place hands them on, on its IPU, so that no value crosses links to an IPU twice.
        """
        first: dict[tuple[int, int], int] = {}
        giver_by_read: dict[tuple[int, int], int] = {}
        for n, read in enumerate(reads):
            if self.ipus[n] < 0:
                continue
            for i in read:
                maker, ipu = self._ipu_of(i), self.ipus[n]
                if maker in (-1, ipu) or not self._is_array(i):
                    continue
                giver = first.setdefault((i, ipu), n)
                if giver != n and not (self.stages and self.stages[giver] == self.stages[n]):
                    giver_by_read[n, i] = giver
        return giver_by_read

    def _ipu_of(self, position: int) -> int:
        """Return the IPU that a value is made on for each micro-batch, or -1."""
        place = self.place[position]
        return self.ipus[place] if place >= 0 else -1

    def _is_array(self, position: int) -> bool:
        shape = self.entry.instructions[position].shape
        return isinstance(shape, ArrayShape) and shape.element_count > FEW_ELEMENTS

    def _is_light(self, position: int) -> bool:
        """Whether a value of another place may be computed again."""
        op = self.entry.instructions[position]
        return (
            self._ipu_of(position) >= 0
            and (op.opcode in VIEWS or op.opcode in _LIGHT)
            and isinstance(op.shape, ArrayShape)
        )

    def _remade(self, number: int, reads: Sequence[int], local: set[int]) -> frozenset[int]:
        roots = [i for i in reads if self._is_light(i) and self._is_array(i)]
        if not roots:
            return frozenset()
        ipu, there = self.ipus[number], frozenset(reads).difference(roots)
        cut = MinimumCut()
        seen, waiting = set(roots), list(roots)
        for root in roots:
            cut.require(root)
        while waiting:
            i = waiting.pop()
            op = self.entry.instructions[i]
            if i in there:
                continue
            if not (self.written_out[i] or self._is_light(i)):
                cut.link(i, MinimumCut.END, self._cost_of_having(i, local))
                continue
            having = INFINITE if self.written_out[i] else byte_count(op.shape) * _UNIT
            cut.link(i, ~i, having)
            if not self.written_out[i]:
                cut.link(~i, MinimumCut.END, self._cost_of_making(i, self._ipu_of(i) != ipu))
            for operand in op.operands:
                cut.link(~i, operand, INFINITE)
                if operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        needed = cut.solved()
        return frozenset(i for i in seen if ~i in needed and not self.written_out[i])

    def _cost_of_having(self, position: int, local: set[int]) -> int:
        """Return what a value costs that cannot be computed again."""
        op = self.entry.instructions[position]
        if self._ipu_of(position) >= 0:
            return byte_count(op.shape) * _UNIT if isinstance(op.shape, ArrayShape) else INFINITE
        moving = {pair.parameter for pair in self.phases.per_micro_batch}
        if op.parameter_number in moving:
            return INFINITE
        # Weights, and what is made before micro-batches.
        return 0 if position in local or not self._is_array(position) else INFINITE

    def _cost_of_making(self, position: int, crosses: bool) -> int:
        op = self.entry.instructions[position]
        if op.opcode in VIEWS:
            return 0
        each = _OVER_LINKS if crosses else _ON_IPU.get(op.opcode, _ON_IPU_OTHERS)
        return byte_count(op.shape) * each


def written_out(entry: Computation, phases: Phases) -> bytearray:
    """Return which values are computed wherever they are read: free ones, and tuples."""
    is_written_out = bytearray(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if op.opcode == "tuple" and position != entry.root:
            is_written_out[position] = 1  # no tuple passes from one call to another
        if phases.phase[position] != FREE or op.attributes.called:
            continue
        small = isinstance(op.shape, ArrayShape) and op.shape.element_count <= FEW_ELEMENTS
        if op.opcode in _CHEAP or small or is_folded(entry, position):
            is_written_out[position] = all(
                is_written_out[i] or entry.instructions[i].parameter_number >= 0
                for i in op.operands
            )
    return is_written_out


def closure(
    entry: Computation, written_out: Sequence[int], positions: Iterable[int]
) -> tuple[list[int], list[int]]:
    """Return what is written out for some ops, and what else they read."""
    inside = set(positions)
    copied: set[int] = set()
    outside: set[int] = set()
    waiting = [i for position in inside for i in entry.instructions[position].operands]
    while waiting:
        i = waiting.pop()
        if i in inside or i in copied:
            continue
        if written_out[i]:
            copied.add(i)
            waiting.extend(entry.instructions[i].operands)
        else:
            outside.add(i)
    return sorted(copied), sorted(outside)
