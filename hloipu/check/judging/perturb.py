"""Rewrite a module to f64 with its own rounding, and errors as large as its ops may make.

Plain HLO, so that XLA:CPU computes it: what such a module gives for several draws shows what the
published budgets of its ops (`interpret/budgets.py`) come to at its results.

A scalar `spread` is added to the entry's parameters and handed to whatever it calls. It moves the
values of ops that have a budget by up to that budget: they are rounded on a coarser grid that is
stretched by `spread`, from 1 to 2, so that errors of different elements are independent; 0 leaves
them alone. This is Monte Carlo arithmetic (Parker, UCLA CSD-970002, 1997) without random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hloipu.check.judging.op_freedom import (
    freedom_of,
    is_exact,
    logistic_quotients,
    summed_products,
)
from hloipu.check.judging.rounding_ops import F64_SCALAR, RoundingOps
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import WideWriter, wide_shape, with_computations
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaves
from hloipu_compiler.passes.framework.attribute_edits import DESCRIBES_LEAVES, renamed, without
from hloipu_compiler.passes.framework.names import Names


def perturbed(module: Module) -> Module | None:
    """Return the module that rounds and errs; None where sizes are known only while running.

    Its parameters are the module's own, floats as f64, and then `spread`.
    """
    if any(
        isinstance(leaf, ArrayShape) and leaf.dynamic
        for c in module.computations
        for op in c.instructions
        for _, leaf in leaves(op.shape)
    ):
        return None
    forms = _Forms(module)
    name = forms.written(module.entry.name, "entry")
    position = next(i for i, c in enumerate(forms.computations) if c.name == name)
    return with_computations(module, tuple(forms.computations), position)


@dataclass(slots=True)
class _Forms:
    """Writes each computation in the forms that its callers need, callees first."""

    module: Module
    computations: list[Computation] = field(default_factory=list)
    _names: Names = field(default_factory=lambda: Names(()))
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def written(self, name: str, form: str) -> str:
        """Return the new name of a computation in a form, written on the first request.

        Forms: `entry` and `called` take the scalar as a parameter of their own, `branch` and
        `body` in a tuple beside their only one, which `body` gives back; `mapped` rounds without
        it, `region` (what a sum is made of) not at all.
        """
        key = name, form
        if key not in self._known:
            computation = _Writing(self, self.module.computation[name], form).finished()
            self._known[key] = self._names.fresh(name)
            self.computations.append(replace(computation, name=self._known[key]))
        return self._known[key]


class _Writing:
    """One computation in one form."""

    def __init__(self, forms: _Forms, old: Computation, form: str) -> None:
        self._forms = forms
        self._old = old
        self._summed = summed_products(forms.module, old)
        self._logistic = logistic_quotients(forms.module, old)
        self._form = form
        self._writer = WideWriter(old)
        self._spread: int | None = None
        self._ops = RoundingOps(self._writer, None)

    def finished(self) -> Computation:
        """Return the computation, which still has its old name."""
        old, writer = self._old, self._writer
        if self._form in ("entry", "called"):
            spread = writer.add("spread", "parameter", F64_SCALAR)
            number = len(old.parameters)
            writer.made[spread] = writer.made[spread]._replace(parameter_number=number)
            self._take(spread)
        place: list[int] = []
        for instruction in old.instructions:
            if instruction.opcode == "parameter" and self._form in ("branch", "body"):
                place.append(self._parameter_of_tuple(instruction))
            else:
                place.append(self._written(instruction, [place[i] for i in instruction.operands]))
        root = place[old.root]
        if self._form == "body":
            root = self._with_spread(root)
        return replace(old, instructions=tuple(writer.made), root=root, start=-1, end=-1)

    def _take(self, spread: int) -> None:
        self._spread = spread
        self._ops = RoundingOps(self._writer, spread)

    def _parameter_of_tuple(self, instruction: Instruction) -> int:
        writer = self._writer
        shape = TupleShape((wide_shape(instruction.shape), F64_SCALAR))
        attributes = without(instruction.attributes, DESCRIBES_LEAVES)
        writer.made.append(instruction._replace(shape=shape, attributes=attributes))
        at = len(writer.made) - 1
        self._take(writer.element("spread", at, 1))
        return writer.element(instruction.name, at, 0)

    def _with_spread(self, at: int) -> int:
        shape = TupleShape((self._writer.made[at].shape, F64_SCALAR))
        return self._writer.add("with_spread", "tuple", shape, (at, *self._spreads()))

    def _spreads(self) -> tuple[int, ...]:
        return () if self._spread is None else (self._spread,)

    def _written(self, instruction: Instruction, operands: list[int]) -> int:
        if instruction.attributes.called:
            if self._spread is not None and instruction.opcode in (
                "call",
                "fusion",
                "while",
                "conditional",
            ):
                return self._call(instruction, operands)
            adds = OPS[instruction.opcode].traits & Trait.APPLIER and instruction.opcode not in (
                "map",
                "sort",
            )
            form = "region" if adds or self._form == "region" else "mapped"
            instruction = self._calling(instruction, form)
        kinds = [leaf.element_type for leaf in array_leaves(instruction.shape)]
        rounds = self._form != "region" and any(k.is_float or k.is_complex for k in kinds)
        if not rounds or is_exact(self._old, instruction) or is_identity(instruction):
            return self._writer.widen(instruction, operands)
        if instruction.opcode == "convert":
            return self._ops.rounded(self._writer.widen(instruction, operands), instruction.shape)
        freedom = freedom_of(
            self._forms.module, self._old, instruction, self._summed, self._logistic
        )
        if freedom.operand_bits is not None:
            operands = [self._ops.moved(at, freedom.operand_bits) for at in operands]
        position = self._writer.widen(instruction, operands)
        if freedom.result_bits is not None:
            position = self._ops.moved(position, freedom.result_bits)
        return self._ops.rounded(position, instruction.shape)

    def _call(self, instruction: Instruction, operands: Sequence[int]) -> int:
        writer = self._writer
        if instruction.opcode in ("call", "fusion"):
            return writer.widen(self._calling(instruction, "called"), [*operands, *self._spreads()])
        if instruction.opcode == "conditional":
            branch_operands = [operands[0], *map(self._with_spread, operands[1:])]
            return writer.widen(self._calling(instruction, "branch"), branch_operands)
        condition = self._forms.written(instruction.attributes.text("condition"), "branch")
        body = self._forms.written(instruction.attributes.text("body"), "body")
        names = {
            instruction.attributes.text("condition"): condition,
            instruction.attributes.text("body"): body,
        }
        state = self._with_spread(operands[0])
        loop = writer.add(instruction.name, "while", writer.made[state].shape, (state,))
        writer.made[loop] = writer.made[loop]._replace(
            attributes=without(renamed(instruction.attributes, names), DESCRIBES_LEAVES),
            backend_config=instruction.backend_config,
        )
        return writer.element(instruction.name, loop, 0)

    def _calling(self, instruction: Instruction, form: str) -> Instruction:
        names = {name: self._forms.written(name, form) for name in instruction.attributes.called}
        return instruction._replace(attributes=renamed(instruction.attributes, names))
