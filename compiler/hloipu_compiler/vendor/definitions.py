"""Replace custom calls by a user's definition: HLO that computes them, or their cycles."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hloipu_compiler.formulas.call import Array, FormulaError, arrays_of
from hloipu_compiler.formulas.text import Text, Value
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.ops.custom_calls import OPAQUE
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.source import Source
from hloipu_compiler.vendor.inlining import OperandArrays, inlined
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

Definition = Callable[[tuple[Array, ...], tuple[Array, ...]], Source]
"""The HLO text of a target, for operands and results of some element types and sizes."""


def with_definitions(module: Module, definitions: Mapping[str, Definition]) -> Module:
    """Return a verified module with the calls of some targets as their texts say.

    Raises UsageError E0533 for a target that nothing calls, FormulaError E0532 for a text whose
    entry does not take the operands of a call or does not give its results, and what reading and
    verifying a text raise.
    """
    targets = {
        op.attributes.text("custom_call_target")
        for c in module.computations
        for op in c.instructions
        if op.opcode == "custom-call"
    }
    for target in definitions:
        if target not in targets:
            known = ", ".join(sorted(targets)) or "nothing"
            raise UsageError(
                "E0533",
                f"no custom call of {module.name!r} has the target {target!r}",
                hint=did_you_mean(target, targets, f"it calls {known}"),
            )

    def choose(instruction: Instruction) -> str:
        target = (
            instruction.attributes.text("custom_call_target")
            if instruction.opcode == "custom-call"
            else ""
        )
        return target if target in definitions else ""

    return inlined(module, choose, partial(_written, module, definitions))


def _written(
    module: Module,
    definitions: Mapping[str, Definition],
    instruction: Instruction,
    target: str,
    operand_arrays: OperandArrays,
) -> Source:
    """Return the text of a call's target, checked against the call."""
    arrays = tuple(array for one in operand_arrays for array in one)
    source = definitions[target](arrays, arrays_of(instruction.shape))
    definition = parse(source)
    verify(definition)
    entry = definition.entry
    shapes = [entry.instructions[at].shape for at in entry.parameters]
    takes = tuple(array for shape in shapes for array in arrays_of(shape))
    results = arrays_of(entry.instructions[entry.root].shape)
    for verb, defined, called in (
        ("takes", takes, arrays),
        ("gives", results, arrays_of(instruction.shape)),
    ):  # fmt: skip
        if defined != called:
            raise FormulaError(
                "E0532",
                f"the definition of {target!r} {verb} {_listed(defined)}, and its call "
                f"{instruction.name!r} {verb} {_listed(called)}",
                hint=f"correct the entry of {source.name}",
                module=module,
                instruction=instruction,
            )
    if any(isinstance(shape, TupleShape) for shape in shapes):
        raise FormulaError(
            "E0532",
            f"the definition of {target!r} takes a tuple",
            hint=f"give the entry of {source.name} a parameter for each array",
            module=module,
            instruction=instruction,
        )
    return source


def _listed(arrays: tuple[Array, ...]) -> str:
    return f"({', '.join(shape_text(*array) for array in arrays)})"


def opaque_call(cycles: int, operands: Sequence[Array], results: Sequence[Array]) -> Source:
    """Return the text of an opaque call of `cycles` cycles, for estimates: it has no values.

    A call stays where it is among its operands and users: it takes a number of each operand and
    gives one, which fills its results.
    """
    text = Text()
    parameters = [text.parameter(n, *array) for n, array in enumerate(operands)]
    numbers = ", ".join(_first(operand).name for operand in parameters if 0 not in operand.dims)
    attributes = f'custom_call_target="{OPAQUE}", backend_config="{cycles}"'
    opaque = text.add("custom-call", "f32", (), numbers, attributes)
    return Source(text.written([_filled(opaque, *array) for array in results]), "<opaque>")


def _first(x: Value) -> Value:
    """Return an array's first element as f32."""
    for d in range(x.rank):
        x = x.sliced(d, 0, 1)
    x = x.reshaped(())
    return (
        x.unary("real", "f64" if x.kind == "c128" else "f32").converted("f32")
        if (x.kind[0] == "c")
        else x.converted("f32")
    )


def _filled(x: Value, kind: str, dims: Sequence[int]) -> Value:
    if kind == "pred":
        return x.compared("NE", 0.0).broadcast(tuple(dims), ())
    if kind[0] == "c":
        part = x.converted("f64" if kind == "c128" else "f32")
        complex_value = x.text.add("complex", kind, (), f"{part.name}, {part.name}")
        return complex_value.broadcast(tuple(dims), ())
    return x.converted(kind).broadcast(tuple(dims), ())
