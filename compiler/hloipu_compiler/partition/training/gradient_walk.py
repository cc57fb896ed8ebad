"""Finds where gradients end and the update begins.

From the new value of each weight the update is walked backwards: through elementwise ops and the
like, and through everything that depends on optimizer state, which no gradient does. The walk ends
at gradients: values that depend on data, made by an op that no update consists of (a product, a
convolution, a reduction, a scatter, a loop), or marked as backward by the dump itself.

What an update mixes tensor by tensor, it mixes with one gradient only: where two come together
without optimizer state, as in a sum of two products or a mask over a cotangent, the gradient is
what comes out. Numbers and vectors that are broadcast into the update (norms, factored moments)
may come from many gradients, but from nothing else that depends on data. Gradients are linear in
cotangents: a number that is made of several of them in another way, as a norm of the gradients of
numbers is, is of the update, and so is whatever is made of gradients alone that are known already.
A number that merely divides or scales gradients of numbers is none itself (`gradients_of_numbers`).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.training.carried_state import has_slope
from hloipu_compiler.partition.training.reach import Mask

_ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
_MOVING = frozenset({"transpose", "reshape", "bitcast", "copy", "convert", "bitcast-convert"})
UPDATING = (
    _ELEMENTWISE
    | _MOVING
    | {"broadcast", "slice", "concatenate", "pad", "reverse", "opt-barrier", "tuple"}
    | {"all-gather", "all-to-all", "collective-permute"}
)
"""What updates consist of."""
SHRINKING = (
    UPDATING
    | with_trait(Trait.COLLECTIVE)
    | {"reduce", "dot", "get-tuple-element", "reduce-window", "gather"}
)
"""What makes norms and moments of gradients, which are broadcast into the update."""
_LINEAR = _MOVING | {"add", "subtract", "negate"}
_NONE: frozenset[int] = frozenset()


@dataclass
class GradientWalk:
    """The gradients found so far, and what of the update has been walked through."""

    computation: Computation
    varying: Mask
    """What differs from micro-batch to micro-batch."""
    optimizing: Mask
    """What depends on state that only the update reads."""
    forward: Mask
    """What the loss depends on."""
    marks: Mapping[int, str] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    update: set[int] = field(default_factory=set)
    """Positions of the update that depend on gradients."""
    sourceless: set[int] = field(default_factory=set)
    """New state that nothing goes into tensor by tensor."""
    crossings: set[int] = field(default_factory=set)
    """What varies and is read by the update, but is no gradient."""
    numbers: frozenset[int] = frozenset()
    """Gradients of weights of one element that a weight has a part in."""
    terms: Mask = field(default_factory=Mask)
    """What has a term of state that does not vary, as new weights have; empty: nothing."""
    backward: frozenset[int] = frozenset()
    """Positions known to be backward: gradients where the update reads them."""
    _lowered: list[int] = field(default_factory=list)
    """Operands of broadcasts in the update, to be walked from."""
    _bent: Mask = field(default_factory=Mask)
    """Numbers that are made of cotangents otherwise than linearly."""

    def sources(self) -> list[frozenset[int]]:
        """Return, for every position, the gradients that it is made of tensor by tensor.

        A position that is one itself has itself. One walk up, so that no depth is too deep.
        """
        sources: list[frozenset[int]] = []
        late = self.late() if self.gradients or self.backward else None
        self._bent = Mask(len(self.computation.instructions))
        for position, op in enumerate(self.computation.instructions):
            if not self.varying[position] or position in self.update:
                sources.append(_NONE)
            elif position in self.gradients or position in self.backward:
                sources.append(frozenset((position,)))
            elif late and late[position] and self._may_be_late(position, op):
                sources.append(_NONE.union(*(sources[i] for i in op.operands)))
            else:
                own = self._source(position, op, sources)
                self._bent[position] = position not in own and self._is_bent(op, sources)
                sources.append(own)
        return sources

    def _may_be_late(self, position: int, op: Instruction) -> bool:
        """Whether an op that reads gradients alone is of the update, as norms of them are."""
        if self.forward[position] or self.marks.get(position) in ("fwd", "bwd"):
            return False
        return op.opcode not in UPDATING

    def _is_bent(self, op: Instruction, sources: list[frozenset[int]]) -> bool:
        """Whether a number is made of cotangents in another way than by sums and factors."""
        if not is_number(op):
            return False
        cotangents = [n for n, i in enumerate(op.operands) if self._is_cotangent(i, sources)]
        if any(self._bent[i] for i in op.operands):
            return True
        match op.opcode:
            case "multiply":
                return len(cotangents) > 1
            case "divide":
                return 1 in cotangents
            case "select":
                return 0 in cotangents
            case opcode:
                return bool(cotangents) and opcode in _ELEMENTWISE and opcode not in _LINEAR

    def _is_cotangent(self, position: int, sources: list[frozenset[int]]) -> bool:
        return bool(sources[position]) and not any(self.forward[i] for i in sources[position])

    def _source(
        self, position: int, op: Instruction, sources: list[frozenset[int]]
    ) -> frozenset[int]:
        own = frozenset((position,))
        mark = self.marks.get(position)
        if op.parameter_number >= 0 or mark in ("fwd", "bwd"):
            return sources[op.operands[0]] if self._is_another_view(position, op, sources) else own
        if self.forward[position] and mark != "wu":
            return own  # what the loss is made of cannot wait for the update
        operands = [i for i in op.operands if self.varying[i]]
        if op.opcode == "broadcast":
            return _NONE  # one that repeats nothing was made a reshape, unless it is of one row
        together = _NONE.union(*(sources[i] for i in operands))
        if self.optimizing[position] or mark == "wu" or op.opcode == "tuple":
            return together
        if together and not has_slope(op) and not any(self.forward[i] for i in together):
            return together  # gradients are floats: this tells whether they are finite, say
        if op.opcode not in UPDATING and not self._is_unmarked_update(position, operands, sources):
            return own
        if len(together) != 1:
            if self.terms and self.terms[position] and self._adds_up(op, operands, sources):
                return together  # new weights so far: each source is a gradient of its own
            if not all(self.forward[i] for i in together) and self._is_bent(op, sources):
                return together
            return own if together else _NONE
        source = next(iter(together))
        moves = op.opcode in _MOVING and op.operands[0] == source
        return own if moves and len(self.computation.users[source]) == 1 else together

    def _adds_up(
        self, op: Instruction, operands: Sequence[int], sources: list[frozenset[int]]
    ) -> bool:
        """Whether an op changes a sum with state in it by terms, or as a whole."""
        if op.opcode == "select" and len(operands) > 1:
            arms = _NONE.union(*(sources[i] for i in op.operands[1:]))
            return sources[op.operands[0]] <= arms
        return op.opcode in ("add", "subtract") or len(operands) == 1

    def _is_another_view(
        self, position: int, op: Instruction, sources: list[frozenset[int]]
    ) -> bool:
        """Whether a backward op only moves what others read as well, the update maybe."""
        if op.opcode not in _MOVING or op.opcode == "convert" or self.forward[position]:
            return False
        (source,) = op.operands
        is_end = sources[source] == frozenset((source,)) and not self.forward[source]
        return is_end and len(self.computation.users[source]) > 1

    def _is_unmarked_update(
        self, position: int, operands: Iterable[int], sources: list[frozenset[int]]
    ) -> bool:
        """Whether the dump marks what is backward, not this op, and it reads gradients alone."""
        if "bwd" not in self.marks.values() or self.forward[position]:
            return False
        return all(self.marks.get(v) == "bwd" for i in operands for v in sources[i]) and all(
            sources[i] for i in operands
        )

    def is_bent(self, position: int) -> bool:
        """Whether, as `sources` last told, it is a number made of cotangents not linearly."""
        return bool(self._bent[position])

    def walk(
        self, results: Iterable[int], sources: list[frozenset[int]], numbers: Set[int] | None = None
    ) -> None:
        """Walk the update backwards from some of its results, as the sources lead.

        `numbers`: those that may be gradients; others that vary are no gradients.
        """
        waiting = list(results)
        self.sourceless |= {i for i in waiting if self.varying[i] and not sources[i]} - self.update
        while waiting:
            position = waiting.pop()
            if not self.varying[position] or position in self.update:
                continue
            op = self.computation.instructions[position]
            if sources[position] == frozenset((position,)):
                known = numbers is None or position in numbers or position in self.gradients
                (self.gradients if known or not is_number(op) else self.crossings).add(position)
                continue
            self.update.add(position)
            lowers = op.opcode == "broadcast"
            (self._lowered if lowers else waiting).extend(op.operands)
        self._walk_lowered()

    def _walk_lowered(self) -> None:
        """Walk on from what is broadcast into the update."""
        if not self._lowered:
            return
        late = self.late()
        waiting, self._lowered = self._lowered, []
        while waiting:
            position = waiting.pop()
            if not self.varying[position]:
                continue
            if position in self.update or position in self.gradients:
                continue
            op = self.computation.instructions[position]
            passes = op.opcode in _ELEMENTWISE or op.opcode in _MOVING or self.optimizing[position]
            if op.opcode == "reduce":  # of one element: there is nothing to add up
                passes |= is_number(self.computation.instructions[op.operands[0]])
            if position in self.numbers and not late[position]:
                self.gradients.add(position)
            elif late[position] or passes:
                self.update.add(position)
                waiting.extend(op.operands)
            else:
                self.crossings.add(position)

    def late(self) -> Mask:
        """Return what depends on data through gradients alone, and is made as norms are."""
        is_late = Mask(len(self.computation.instructions))
        for position, op in enumerate(self.computation.instructions):
            known = position in self.gradients or position in self.backward
            if known or position in self.update:
                is_late[position] = 1
            elif self.varying[position] and op.operands and op.opcode in SHRINKING:
                is_late[position] = all(is_late[i] or not self.varying[i] for i in op.operands)
        return is_late


def is_number(op: Instruction) -> bool:
    """Whether it is an array of one element, of whatever rank."""
    return isinstance(op.shape, ArrayShape) and all(n == 1 for n in op.shape.dimensions)
