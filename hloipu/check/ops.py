"""Find the first op that diverges: each op alone, ours against a reference, on equal operands."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hloipu.check.outputs import Reference, compare_outputs, nested, truth_of
from hloipu.check.singles import Single, alone, answers, together
from hloipu_compiler.interpret.agreement import Budget, Verdict, compare_values
from hloipu_compiler.interpret.budgets import budget_of
from hloipu_compiler.interpret.evaluator import Evaluator, bytes_of
from hloipu_compiler.interpret.participants import evaluate_everywhere, meeting_computations
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.regions import monoid_of
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened, widened_arguments
from hloipu_compiler.ir.annotations import needs_others
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.errors import HloipuError, LimitError
from hloipu_runtime.kernels.core.storage import from_storage, to_storage

PASSED_OVER = frozenset("parameter constant tuple get-tuple-element".split())

HELD_BYTES = 8 * 2**30
"""Values of all ops that one search may keep in memory."""

_COMPOUND = frozenset("call fusion while conditional custom-call".split())
"""Opcodes whose results are held to the rule of whole modules: no budget is published for them."""
_NEAREST = 3
"""Ops nearest to their budget that are remembered."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first op whose value differs by more than its budget when both get equal operands."""

    instruction: Instruction
    computation: str
    verdict: Verdict
    budget: Budget
    reference_is_off: bool = False
    """Whether our value keeps its budget against f64, and the reference's does not."""


@dataclass(slots=True)
class Tally:
    """Progress of a search, kept after it was stopped."""

    begun: int = 0
    """Ops handed to the reference, or still to be."""
    judged: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    """Ops that are not judged, by the reason."""
    nearest: list[tuple[float, str]] = field(default_factory=list)
    """The ops nearest to their budget: the share of it that they use, and which op it is."""
    told: Callable[[int, int], None] = lambda _judged, _begun: None
    """Is called with `judged` and `begun` after each batch."""

    def near(self, share: float, instruction: Instruction, computation: str) -> None:
        """Remember an op if it is among the nearest."""
        if share > 0:
            self.nearest.append(
                (share, f"{instruction.name} = {instruction.opcode} in {computation}")
            )
            self.nearest = sorted(self.nearest, reverse=True)[:_NEAREST]


def first_divergence(
    module: Module, arguments: Sequence[Array], reference: Reference, tally: Tally | None = None
) -> Divergence | None:
    """Run each op of the entry alone on our operands' values, ours against the reference.

    Follows a diverging call or fusion into its computation, and every call in which participants
    meet. Ops that the reference cannot compute alone, or that need other participants, are passed
    over: `tally` has their number.
    """
    check_room(module, (op for op in module.entry.instructions if op.opcode not in PASSED_OVER))
    tally = tally or Tally()
    leaves_by_instruction: dict[int, Sequence[Array]] = {}
    evaluate_everywhere(
        module,
        *nested(module, arguments),
        watch=lambda instruction, leaves: leaves_by_instruction.update(
            {id(instruction): list(leaves)}
        ),
    )
    search = _Search(module, leaves_by_instruction, meeting_computations(module), reference, tally)
    return search.in_computation(module.entry, arguments)


def check_room(module: Module, kept: Iterable[Instruction]) -> None:
    """Refuse a module whose values do not all fit: every op's are kept until it is judged."""
    bytes_kept = sum(bytes_of(op.shape) for op in kept)
    if bytes_kept > HELD_BYTES:
        raise LimitError(
            "E5014",
            f"checking {module.name!r} op by op keeps {bytes_kept / 2**30:.1f} GiB of values, "
            f"{HELD_BYTES / 2**30:.0f} GiB are allowed",
            limit="held_bytes",
            allowed=HELD_BYTES,
            found=bytes_kept,
            hint="check a smaller batch, or cut the module down with hloipu reduce",
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for the first op that diverges."""

    module: Module
    seen: Mapping[int, Sequence[Array]]
    """Leaves of instructions by identity (computations may share names), in storage form, as the
    last run of each made them."""
    meeting: frozenset[str]
    """Computations that cannot be run without other participants."""
    reference: Reference
    tally: Tally
    visited: set[str] = field(default_factory=set)

    def in_computation(
        self, computation: Computation, arguments: Sequence[Array]
    ) -> Divergence | None:
        values = _values(computation, arguments, self.seen)
        for instruction, leaves in self._meeting_calls(computation, values):
            divergence = self.in_computation(
                self.module.computation[instruction.attributes.called[0]], leaves
            )
            if divergence is not None:
                return divergence
        singles = list(self._singles(computation, values))
        self.tally.begun += len(singles)
        suspect: Divergence | None = None
        for batch in answers(singles, self.reference):
            both = [
                _OpResults(single, answer)
                for single, answer in batch
                if not isinstance(answer, str)
            ]
            self.tally.passed_over["the reference refuses"] += len(batch) - len(both)
            truths = _truths(both, self.reference)
            for answered, truth in zip(both, truths, strict=True):
                divergence = self._diverges(computation, answered, truth)
                self.tally.judged += 1
                if divergence is not None and divergence.reference_is_off:
                    suspect = suspect or divergence
                elif divergence is not None:
                    return self._inside(answered.single) or divergence
            self.tally.told(self.tally.judged, self.tally.begun)
        return suspect

    def _singles(
        self, computation: Computation, values: Mapping[int, list[Array]]
    ) -> Iterator[Single]:
        for position, instruction in enumerate(computation.instructions):
            if instruction.opcode in PASSED_OVER:
                continue
            shapes = [
                instruction.shape,
                *(computation.instructions[i].shape for i in instruction.operands),
            ]
            if needs_others(instruction) or bool(self.meeting & {*instruction.attributes.called}):
                self.tally.passed_over["need other participants"] += 1
            elif any(not leaf.element_type.is_array for s in shapes for leaf in array_leaves(s)):
                self.tally.passed_over["move tokens"] += 1
            elif position not in values or any(i not in values for i in instruction.operands):
                self.tally.passed_over["were not run"] += 1
            else:
                leaves = [leaf for i in instruction.operands for leaf in values[i]]
                yield Single(instruction, alone(self.module, computation, position), leaves)

    def _inside(self, single: Single) -> Divergence | None:
        instruction = single.instruction
        if instruction.opcode not in ("call", "fusion"):
            return None
        callee = self.module.computation[instruction.attributes.called[0]]
        inner = replace(self.module, entry_position=self.module.computations.index(callee))
        return first_divergence(inner, single.leaves, self.reference, self.tally)

    def _diverges(
        self, computation: Computation, both: "_OpResults", truth: Sequence[Array] | None
    ) -> Divergence | None:
        """Return how an op's result is off its budget, or None where it is not."""
        single, ours, answer = both.single, both.ours, both.theirs
        instruction = single.instruction
        shapes = array_leaves(instruction.shape)
        if both.are_equal:
            return None
        if instruction.opcode in _COMPOUND:
            reports = compare_outputs(single.module, ours, answer, truth)
            bad = [report for report in reports if not report.agrees]
            if not bad:
                return None
            budget = Budget(bad[0].shape.element_type.name)
            number = bad[0].number
            verdict = compare_values(ours[number], answer[number], budget)
            return Divergence(instruction, computation.name, verdict, budget)
        budgets = [op_budget(self.module, computation, instruction, shape) for shape in shapes]
        sums = any(budget.factor for budget in budgets)
        magnitudes = _magnitudes(single.module, single.leaves) if sums else None
        for number, (budget, a, b) in enumerate(zip(budgets, ours, answer, strict=True)):
            size = magnitudes[number] if magnitudes else None
            verdict = compare_values(a, b, budget, size)
            if not verdict.agrees:
                right = self._is_right(single, number, a, budget, size)
                return Divergence(
                    instruction, computation.name, verdict, budget, reference_is_off=right
                )
            of_ulps = verdict.error / budget.ulps if budget.ulps else 0.0
            share = of_ulps if verdict.unit == "ULP" else verdict.error
            self.tally.near(share, instruction, computation.name)
        return None

    def _is_right(
        self, single: Single, number: int, ours: Array, budget: Budget, magnitudes: Array | None
    ) -> bool:
        """Whether our value keeps its budget against the reference's own in f64."""
        shape = array_leaves(single.module.entry.program_shape.result)[number]
        if not (shape.element_type.is_float or shape.element_type.is_complex):
            return False
        truth = truth_of(self.reference, single.module, single.leaves)
        if truth is None:
            return False
        return compare_values(ours, _rounded(truth[number], shape), budget, magnitudes).agrees

    def _meeting_calls(
        self, computation: Computation, values: Mapping[int, list[Array]]
    ) -> Iterator[tuple[Instruction, list[Array]]]:
        for instruction in computation.instructions:
            known = all(i in values for i in instruction.operands)
            callee = (
                instruction.attributes.called[0] if instruction.opcode in ("call", "fusion") else ""
            )
            if callee in self.meeting and callee not in self.visited and known:
                self.visited.add(callee)
                yield instruction, [leaf for i in instruction.operands for leaf in values[i]]


def _values(
    entry: Computation,
    arguments: Sequence[Array],
    leaves_by_instruction: Mapping[int, Sequence[Array]],
) -> dict[int, list[Array]]:
    """Return the leaves of every instruction of a computation, in user dtypes."""
    values: dict[int, list[Array]] = {}
    at = 0
    offsets = {}
    for position in entry.parameters:
        offsets[position] = at
        at += len(array_leaves(entry.instructions[position].shape))
    for position, instruction in enumerate(entry.instructions):
        types = [leaf.element_type.name for leaf in array_leaves(instruction.shape)]
        if instruction.opcode == "parameter":
            first = offsets[position]
            values[position] = list(arguments[first : first + len(types)])
        elif id(instruction) in leaves_by_instruction:
            values[position] = [
                from_storage(v, t) if t != "token" else v
                for v, t in zip(leaves_by_instruction[id(instruction)], types, strict=True)
            ]
        elif instruction.opcode in (
            "tuple",
            "constant",
            "get-tuple-element",
            "copy",
            "opt-barrier",
        ):
            values.update(_forwarded(entry, position, values))
    return values


def _forwarded(
    entry: Computation, position: int, values: dict[int, list[Array]]
) -> dict[int, list[Array]]:
    instruction = entry.instructions[position]
    if any(i not in values for i in instruction.operands):
        return {}
    if instruction.opcode == "constant":
        entry = Computation("entry", (instruction._replace(operands=()),), 0)
        return {position: Evaluator(Module("constant", (entry,), 0))()}
    if instruction.opcode == "get-tuple-element":
        shape = entry.instructions[instruction.operands[0]].shape
        index = instruction.attributes.integer("index")
        if not isinstance(shape, TupleShape):
            return {}
        first = sum(len(array_leaves(e)) for e in shape.elements[:index])
        count = len(array_leaves(instruction.shape))
        return {position: values[instruction.operands[0]][first : first + count]}
    return {position: [leaf for i in instruction.operands for leaf in values[i]]}


class _OpResults:
    """An op's result as we compute it and as the reference does, in one form."""

    def __init__(self, single: Single, theirs: list[Array]) -> None:
        shapes = array_leaves(single.instruction.shape)
        self.single = single
        self.ours = Evaluator(single.module)(*single.leaves)
        self.theirs = [_rounded(b, shape) for b, shape in zip(theirs, shapes, strict=True)]
        self.are_equal = all(map(_same_bits, self.ours, self.theirs))

    @property
    def needs_truth(self) -> bool:
        """Whether it is judged as whole modules are."""
        return not self.are_equal and self.single.instruction.opcode in _COMPOUND


def _truths(batch: Sequence[_OpResults], reference: Reference) -> Iterator[Sequence[Array] | None]:
    """Yield each op's result in f64 where it is judged as whole modules are, else None."""
    wanted = [answered.single for answered in batch if answered.needs_truth]
    truth = truth_of(reference, *together(wanted)) if len(wanted) > 1 else None
    first = 0
    for answered in batch:
        if not answered.needs_truth:
            yield None
        elif truth is not None:
            count = len(answered.ours)
            yield truth.part(first, count)
            first += count
        else:
            yield truth_of(reference, answered.single.module, answered.single.leaves)


def _same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _rounded(value: Array, shape: ArrayShape) -> Array:
    """Bring a reference that computed in f64 or c128 to the type of the result."""
    element = shape.element_type
    if value.dtype.name not in ("float64", "complex128") or value.dtype.name == element.storage:
        return value
    with np.errstate(over="ignore"):
        return to_storage(value.astype(element.storage), element.name)


def op_budget(
    module: Module, computation: Computation, instruction: Instruction, shape: ArrayShape
) -> Budget:
    """Return the published budget of an instruction for a leaf of its result."""
    applied = instruction.attributes.text("to_apply") or instruction.attributes.text("scatter")
    combiner = monoid_of(module, applied) if applied in module.computation else "add"
    operand = (
        computation.instructions[instruction.operands[0]].shape if instruction.operands else shape
    )
    inputs = max((leaf.element_count for leaf in array_leaves(operand)), default=1)
    terms = max(2, inputs)
    operand_type = array_leaves(operand)[0].element_type.name
    return budget_of(
        instruction.opcode,
        shape.element_type.name,
        terms=terms,
        combiner=combiner,
        operand_type=operand_type if instruction.opcode in ("abs", "convert") else None,
    )


def _magnitudes(single: Module, leaves: list[Array]) -> list[Array] | None:
    """Return the sums of absolute terms: the op on absolute values, in f64."""
    wide = widened(single)
    absolute = [
        np.abs(array) if array.dtype.kind in "fc" else array for array in widened_arguments(leaves)
    ]
    try:
        return [
            np.abs(array)
            for array in Evaluator(wide)(
                *(
                    array.astype(np.complex128) if leaf.dtype.kind == "c" else array
                    for array, leaf in zip(absolute, leaves, strict=True)
                )
            )
        ]
    except HloipuError:
        return None
