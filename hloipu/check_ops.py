"""Find the first op that diverges: each op alone, ours against a reference, on equal operands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hloipu.check_outputs import Reference, compare_outputs, nested, truth_of
from hloipu_compiler.evaluate.agreement import Budget, Verdict, compare_values
from hloipu_compiler.evaluate.budgets import budget_of
from hloipu_compiler.evaluate.evaluator import Evaluator, bytes_of
from hloipu_compiler.evaluate.participants import (
    evaluate_everywhere,
    meeting_computations,
    needs_others,
)
from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.evaluate.regions import monoid_of
from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.evaluate.widen import widened, widened_arguments
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.errors import HloipuError, LimitError
from hloipu_runtime.kernels.storage import from_storage, to_storage

PASSED_OVER = frozenset("parameter constant tuple get-tuple-element".split())

HELD_BYTES = 8 * 2**30
"""Values of all ops that one search may keep in memory."""

BATCH_BYTES = 512 * 2**20
"""Operands handed to the reference at a time; they go through files."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first op whose value differs by more than its budget when both get equal operands."""

    instruction: Instruction
    computation: str
    verdict: Verdict
    budget: Budget
    reference_is_off: bool = False
    """Whether our value keeps its budget against f64, and the reference's does not."""


def first_divergence(
    module: Module, arguments: Sequence[Array], reference: Reference
) -> Divergence | None:
    """Run each op of the entry alone on our operands' values, ours against the reference.

    Follows a diverging call or fusion into its computation, and every call in which participants
    meet. Ops that the reference cannot compute alone, or that need other participants, are passed
    over.
    """
    _check_room(module)
    seen: dict[int, Sequence[Array]] = {}
    evaluate_everywhere(
        module,
        *nested(module, arguments),
        watch=lambda x, leaves: seen.update({id(x): list(leaves)}),
    )
    return _Search(module, seen, meeting_computations(module), reference).in_computation(
        module.entry, arguments
    )


def _check_room(module: Module) -> None:
    """Refuse a module whose values do not all fit: every op's are kept until it is judged."""
    held = sum(bytes_of(x.shape) for x in module.entry.instructions if x.opcode not in PASSED_OVER)
    if held > HELD_BYTES:
        raise LimitError(
            "E5014",
            f"checking {module.name!r} op by op keeps {held / 2**30:.1f} GiB of values, "
            f"{HELD_BYTES / 2**30:.0f} GiB are allowed",
            limit="held_bytes",
            allowed=HELD_BYTES,
            found=held,
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
    visited: set[str] = field(default_factory=set)

    def in_computation(
        self, computation: Computation, arguments: Sequence[Array]
    ) -> Divergence | None:
        """Return the first op of a computation that diverges, given its arguments' leaves."""
        values = _values(computation, arguments, self.seen)
        for x, leaves in self._meeting_calls(computation, values):
            found = self.in_computation(self.module.computation[x.attributes.called[0]], leaves)
            if found is not None:
                return found
        singles: list[tuple[Instruction, Module, list[Array]]] = []
        for position, x in enumerate(computation.instructions):
            if x.opcode in PASSED_OVER or position not in values or self._meets(x):
                continue
            if all(i in values for i in x.operands):
                leaves = [leaf for i in x.operands for leaf in values[i]]
                singles.append((x, alone(self.module, computation, position), leaves))
        suspect: Divergence | None = None
        for x, single, leaves, answer in self._answered(singles):
            if isinstance(answer, str):
                continue
            found = _diverges(self.module, computation, x, single, leaves, answer, self.reference)
            if found is not None and found.reference_is_off:
                suspect = suspect or found
            elif found is not None:
                return _inside(self.module, x, leaves, self.reference) or found
        return suspect

    def _answered(
        self, singles: list[tuple[Instruction, Module, list[Array]]]
    ) -> Iterator[tuple[Instruction, Module, list[Array], list[Array] | str]]:
        """Ask the reference batch by batch: all at once could fill the disk with operands."""
        batch: list[tuple[Instruction, Module, list[Array]]] = []
        waiting_bytes = 0
        for number, single in enumerate(singles):
            batch.append(single)
            waiting_bytes += sum(leaf.nbytes for leaf in single[2])
            if waiting_bytes < BATCH_BYTES and number + 1 < len(singles):
                continue
            answers = self.reference([(module, leaves) for _, module, leaves in batch])
            for (x, module, leaves), answer in zip(batch, answers, strict=True):
                yield x, module, leaves, answer
            batch, waiting_bytes = [], 0

    def _meets(self, x: Instruction) -> bool:
        return needs_others(x) or bool(self.meeting & {*x.attributes.called})

    def _meeting_calls(
        self, computation: Computation, values: Mapping[int, list[Array]]
    ) -> Iterator[tuple[Instruction, list[Array]]]:
        for x in computation.instructions:
            known = all(i in values for i in x.operands)
            callee = x.attributes.called[0] if x.opcode in ("call", "fusion") else ""
            if callee in self.meeting and callee not in self.visited and known:
                self.visited.add(callee)
                yield x, [leaf for i in x.operands for leaf in values[i]]


def _inside(
    module: Module, x: Instruction, leaves: list[Array], reference: Reference
) -> Divergence | None:
    if x.opcode not in ("call", "fusion"):
        return None
    callee = module.computation[x.attributes.called[0]]
    inner = replace(module, entry_position=module.computations.index(callee))
    return first_divergence(inner, leaves, reference)


def _values(
    entry: Computation, arguments: Sequence[Array], seen: Mapping[int, Sequence[Array]]
) -> dict[int, list[Array]]:
    """Return the leaves of every instruction of a computation, in user dtypes."""
    values: dict[int, list[Array]] = {}
    at = 0
    offsets = {}
    for position in entry.parameters:
        offsets[position] = at
        at += len(array_leaves(entry.instructions[position].shape))
    for position, x in enumerate(entry.instructions):
        types = [leaf.element_type.name for leaf in array_leaves(x.shape)]
        if x.opcode == "parameter":
            first = offsets[position]
            values[position] = list(arguments[first : first + len(types)])
        elif id(x) in seen:
            values[position] = [
                from_storage(v, t) if t != "token" else v
                for v, t in zip(seen[id(x)], types, strict=True)
            ]
        elif x.opcode in ("tuple", "constant", "get-tuple-element", "copy", "opt-barrier"):
            values.update(_forwarded(entry, position, values))
    return values


def _forwarded(
    entry: Computation, position: int, values: dict[int, list[Array]]
) -> dict[int, list[Array]]:
    x = entry.instructions[position]
    if any(i not in values for i in x.operands):
        return {}
    if x.opcode == "constant":
        return {position: Evaluator(_constant_module(x))()}
    if x.opcode == "get-tuple-element":
        shape = entry.instructions[x.operands[0]].shape
        index = x.attributes.integer("index")
        if not isinstance(shape, TupleShape):
            return {}
        first = sum(len(array_leaves(e)) for e in shape.elements[:index])
        count = len(array_leaves(x.shape))
        return {position: values[x.operands[0]][first : first + count]}
    return {position: [leaf for i in x.operands for leaf in values[i]]}


def _constant_module(x: Instruction) -> Module:
    return Module("constant", (Computation("entry", (x._replace(operands=()),), 0),), 0)


def alone(module: Module, computation: Computation, position: int) -> Module:
    """Return one instruction as a module: its operands' leaves are the parameters."""
    x = computation.instructions[position]
    made: list[Instruction] = []
    operands = []
    for number, i in enumerate(x.operands):
        operands.append(_parameter(made, computation.instructions[i].shape, f"operand{number}"))
    made.append(x._replace(operands=tuple(operands), metadata="", start=-1, end=-1))
    entry = Computation(f"only.{x.name}", tuple(made), len(made) - 1)
    called = tuple(_needed(module, x))
    return Module(f"only_{x.opcode.replace('-', '_')}", (*called, entry), len(called))


def _parameter(made: list[Instruction], shape: Any, name: str) -> int:
    """Add parameters for the leaves of a shape and put them together; return its position."""
    if isinstance(shape, TupleShape):
        parts = [_parameter(made, e, f"{name}.{i}") for i, e in enumerate(shape.elements)]
        made.append(Instruction(name, "tuple", shape, tuple(parts)))
    else:
        number = sum(p.opcode == "parameter" for p in made)
        made.append(Instruction(name, "parameter", shape, parameter_number=number))
    return len(made) - 1


def _needed(module: Module, x: Instruction) -> Iterator[Computation]:
    """Yield the computations that an instruction calls, callees first, each once."""
    seen: dict[str, Computation] = {}

    def visit(names: Sequence[str]) -> None:
        for name in names:
            if name not in seen:
                callee = module.computation[name]
                visit([n for y in callee.instructions for n in y.attributes.called])
                seen[name] = callee

    visit(x.attributes.called)
    yield from seen.values()


def _diverges(
    module: Module,
    computation: Computation,
    x: Instruction,
    single: Module,
    leaves: list[Array],
    answer: list[Array],
    reference: Reference,
) -> Divergence | None:
    ours = Evaluator(single)(*leaves)
    answer = [_rounded(b, shape) for b, shape in zip(answer, array_leaves(x.shape), strict=True)]
    if x.opcode in ("call", "fusion", "while", "conditional", "custom-call"):
        truth = truth_of(reference, single, leaves)
        bad = [r for r in compare_outputs(single, ours, answer, truth) if not r.agrees]
        if not bad:
            return None
        budget = Budget(bad[0].shape.element_type.name)
        number = bad[0].number
        return Divergence(
            x, computation.name, compare_values(ours[number], answer[number], budget), budget
        )
    magnitudes = _magnitudes(single, leaves)
    for number, (shape, a, b) in enumerate(zip(array_leaves(x.shape), ours, answer, strict=True)):
        budget = op_budget(module, computation, x, shape)
        size = magnitudes[number] if magnitudes else None
        verdict = compare_values(a, b, budget, size)
        if not verdict.agrees:
            right = _is_right(single, leaves, number, a, budget, size, reference)
            return Divergence(x, computation.name, verdict, budget, reference_is_off=right)
    return None


def _is_right(
    single: Module,
    leaves: list[Array],
    number: int,
    ours: Array,
    budget: Budget,
    magnitudes: Array | None,
    reference: Reference,
) -> bool:
    """Whether our value keeps its budget against the reference's own in f64."""
    shape = array_leaves(single.entry.program_shape.result)[number]
    if not (shape.element_type.is_float or shape.element_type.is_complex):
        return False
    truth = truth_of(reference, single, leaves)
    if truth is None:
        return False
    return compare_values(ours, _rounded(truth[number], shape), budget, magnitudes).agrees


def _rounded(value: Array, shape: ArrayShape) -> Array:
    """Bring a reference that computed in f64 or c128 to the type of the result."""
    element = shape.element_type
    if value.dtype.name not in ("float64", "complex128") or value.dtype.name == element.storage:
        return value
    with np.errstate(over="ignore"):
        return to_storage(value.astype(element.storage), element.name)


def op_budget(
    module: Module, computation: Computation, x: Instruction, shape: ArrayShape
) -> Budget:
    """Return the published budget of an instruction for a leaf of its result."""
    applied = x.attributes.text("to_apply") or x.attributes.text("scatter")
    combiner = monoid_of(module, applied) if applied in module.computation else "add"
    operand = computation.instructions[x.operands[0]].shape if x.operands else shape
    inputs = max((leaf.element_count for leaf in array_leaves(operand)), default=1)
    terms = max(2, inputs)
    operand_type = array_leaves(operand)[0].element_type.name
    return budget_of(
        x.opcode,
        shape.element_type.name,
        terms=terms,
        combiner=combiner,
        operand_type=operand_type if x.opcode in ("abs", "convert") else None,
    )


def _magnitudes(single: Module, leaves: list[Array]) -> list[Array] | None:
    """Return the sums of absolute terms: the op on absolute values, in f64."""
    wide = widened(single)
    if wide is None:
        return None
    absolute = [np.abs(x) if x.dtype.kind in "fc" else x for x in widened_arguments(leaves)]
    try:
        return [
            np.abs(x)
            for x in Evaluator(wide)(
                *(
                    x.astype(np.complex128) if leaf.dtype.kind == "c" else x
                    for x, leaf in zip(absolute, leaves, strict=True)
                )
            )
        ]
    except HloipuError:
        return None
