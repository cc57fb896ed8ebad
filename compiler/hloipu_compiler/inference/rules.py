"""The table of shape rules, and the function that applies it.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`. A rule returns
the shape that the operation gives; whether the declared one agrees is the verifier's question.
"""

from collections.abc import Callable

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.site import ONE_DEVICE, RULES, Participants, Site
from hloipu_compiler.ir.attributes import Attributes, ProgramShape
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, leaves
from hloipu_runtime.element_types import ElementType, Kind

MIXED_PRECISION_ALLOWED = frozenset(
    {
        # exempt in XLA's list
        "call", "conditional", "constant", "convolution", "dot", "ragged-dot", "scaled-dot",
        "all-reduce", "all-reduce-start", "all-reduce-done", "all-gather", "all-gather-start",
        "all-gather-done", "async-start", "async-update", "async-done", "collective-permute",
        "collective-permute-start", "collective-permute-done", "copy-start", "copy-done",
        "custom-call", "domain", "fusion", "get-tuple-element", "opt-barrier", "infeed", "outfeed",
        "parameter", "recv", "recv-done", "reduce-precision", "reduce-window", "send", "send-done",
        "sort", "tuple", "while",
        # never asked, because XLA checks these without comparing a whole shape
        "scan", "rng", "rng-bit-generator", "dynamic-reshape", "bitcast",
    }
)  # fmt: skip
"""Operations whose operands may be floats of different formats."""


def infer_shape(
    opcode: str,
    operands: tuple[Shape, ...],
    attributes: Attributes,
    declared: Shape | None,
    program_shape: Callable[[str], ProgramShape],
    participants: Participants = ONE_DEVICE,
) -> Shape:
    """Return the shape that an operation gives, having checked its operands and attributes.

    With `declared` None this infers what XLA's parser infers for an instruction without a shape;
    else it also applies the stricter rules of the verifier. `program_shape` gives the signature of
    a computation by its name. Layouts of the result are not meaningful. Raises ShapeFault.
    """
    rule = RULES.get(opcode)
    if rule is None:
        raise faults.NOT_INFERABLE(
            f"there is no shape rule for {opcode}",
            expected="a current opcode",
            hint="legacy opcodes are rewritten while reading",
        )
    op, count = OPS[opcode], len(operands)
    if count < op.fewest_operands or (op.most_operands is not None and count > op.most_operands):
        raise _operand_number(opcode, count)
    if (
        declared is not None
        and (count > 1 or (count and isinstance(operands[0], TupleShape)))
        and opcode not in MIXED_PRECISION_ALLOWED
    ):
        _check_one_precision(opcode, operands)
    return rule(Site(opcode, operands, attributes, declared, program_shape, participants))


def _operand_number(opcode: str, count: int) -> ShapeFault:
    op = OPS[opcode]
    most = op.most_operands
    wanted = (
        f"{op.fewest_operands}" if most == op.fewest_operands else f"{op.fewest_operands} to {most}"
    )
    if most is None:
        wanted = f"at least {op.fewest_operands}"
    return faults.OPERAND_NUMBER(f"{opcode} of {count} operands", expected=wanted)


def _check_one_precision(opcode: str, operands: tuple[Shape, ...]) -> None:
    first: ElementType | None = None
    for number, operand in enumerate(operands):
        if isinstance(operand, ArrayShape):
            element_type = operand.element_type
            if element_type is first or element_type.kind is not Kind.FLOAT:
                continue
            if first is not None:
                raise _mixed(opcode, number, first, element_type)
            first = element_type
            continue
        for _, leaf in leaves(operand):
            if isinstance(leaf, ArrayShape) and leaf.element_type.kind is Kind.FLOAT:
                if first is not None and leaf.element_type is not first:
                    raise _mixed(opcode, number, first, leaf.element_type)
                first = leaf.element_type


def _mixed(opcode: str, number: int, first: ElementType, other: ElementType) -> ShapeFault:
    return faults.MIXED_PRECISION(
        f"{opcode} of {first.name} and {other.name}",
        expected=first.name,
        operand=number,
        hint="convert one operand: only some operations mix float formats",
    )
