"""The signature of a computation that combines elements: 2n scalars in, n scalars out.

Sources: openxla/xla `xla/service/shape_inference.cc` (`VerifyReducerShape`),
`xla/service/hlo_verifier.cc` (`SameElementTypesForOperandsAndToApplyParameters`).
"""

from collections.abc import Sequence

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import (
    compatible_up_to_precision,
    same_sizes,
    same_type,
    scalar,
)
from hloipu_compiler.inference.site import Site, array_operands
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import ElementType


def reduced_inputs(site: Site) -> list[ArrayShape]:
    """Return the first half of the operands: arrays of equal sizes, each with an initial value."""
    count = len(site.operands) // 2
    if len(site.operands) != 2 * count:
        raise faults.OPERAND_NUMBER(
            f"{site.opcode} of {len(site.operands)} operands",
            expected="n inputs and n initial values",
        )
    inputs = array_operands(site, 0, count)
    check_same_sizes(site, inputs)
    return inputs


def check_same_sizes(site: Site, shapes: Sequence[ArrayShape]) -> None:
    """Check that arrays, the first operands, have the sizes of the first one."""
    for number, shape in enumerate(shapes):
        if shape is not shapes[0] and not same_sizes(shapes[0], shape):
            raise faults.SIZE_MISMATCH(
                f"{site.opcode} of {shapes[0]} and {shape}",
                expected=f"the sizes of {shapes[0]}",
                operand=number,
            )


def check_reducer(
    attribute: str,
    program: ProgramShape,
    inputs: Sequence[ElementType],
    inits: Sequence[Shape],
) -> list[ElementType]:
    """Check a reducer of n inputs and return the element types of its n results.

    Accumulator i is parameter i, result i and, up to float precision, initial value i; parameter
    n+i takes an element of input i. All are scalars.
    """
    count = len(inputs)
    parameters = program.parameters
    if len(parameters) != 2 * count:
        raise _fault(attribute, f"{len(parameters)} parameters", f"{2 * count} scalar parameters")
    results = _result_scalars(attribute, program.result, count)
    for i, result in enumerate(results):
        if not compatible(result, parameters[i]):
            raise _fault(attribute, f"result {i} of shape {result}", f"{parameters[i]}")
        if not compatible_up_to_precision(result, inits[i]):
            raise _fault(
                attribute, f"result {i} of shape {result}", f"the initial value's shape {inits[i]}"
            )
        for wanted in (scalar(inputs[i]), result):
            if not compatible_up_to_precision(wanted, parameters[count + i]):
                raise _fault(
                    attribute,
                    f"parameter {count + i} of shape {parameters[count + i]}",
                    f"{wanted}",
                )
    return [result.element_type for result in results]


def check_exact_types(site: Site, program: ProgramShape) -> None:
    """Check that parameter i of an applied computation has the element type of operand i."""
    if not site.verifying:
        return
    for i, (operand, parameter) in enumerate(zip(site.operands, program.parameters, strict=False)):
        if not isinstance(operand, ArrayShape) or not isinstance(parameter, ArrayShape):
            continue
        if operand.element_type is not parameter.element_type:
            wanted = f"{operand.element_type.name}[]"
            raise _fault("to_apply", f"parameter {i} of shape {parameter}", wanted)


def _result_scalars(attribute: str, result: Shape, count: int) -> list[ArrayShape]:
    parts = result.elements if isinstance(result, TupleShape) else (result,)
    scalars = [p for p in parts if isinstance(p, ArrayShape) and p.is_scalar]
    wanted = "one scalar" if count == 1 else f"a tuple of {count} scalars"
    if len(scalars) != len(parts) or len(parts) != count:
        raise _fault(attribute, f"a result of shape {result}", wanted)
    return scalars


def scalar_parameter(shape: Shape, element_type: ElementType) -> bool:
    """Whether a parameter is one number of a type, up to float precision."""
    return (
        isinstance(shape, ArrayShape)
        and shape.is_scalar
        and same_type(shape.element_type, element_type)
    )


def _fault(attribute: str, problem: str, expected: str) -> ShapeFault:
    return faults.REDUCER(
        f"the computation in {attribute} has {problem}", expected=expected, attribute=attribute
    )
