"""Operations that call computations.

Sources: openxla/xla `xla/service/hlo_verifier.cc`, `xla/service/shape_inference.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.relations import with_dynamic
from hloipu_compiler.inference.site import RULES, Site, declared_shape
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import PRED, S32, U64


@RULES.register("call")
def call(site: Site) -> Shape:
    """Return the result of the called computation, whose parameters fit the operands."""
    program = site.callee("to_apply")
    check_arguments("to_apply", program, site.operands)
    return program.result


def check_arguments(
    attribute: str, program: ProgramShape, arguments: tuple[Shape, ...], first: int = 0
) -> None:
    """Check that a computation has one fitting parameter for each argument."""
    parameters = program.parameters
    if len(parameters) != len(arguments):
        raise faults.CALLEE(
            f"the computation in {attribute} has {len(parameters)} parameters",
            expected=f"{len(arguments)}",
            attribute=attribute,
        )
    for i, (argument, parameter) in enumerate(zip(arguments, parameters, strict=True)):
        if argument is not parameter and not compatible(argument, parameter):
            raise faults.CALLEE(
                f"operand {first + i} is {argument}, parameter {i} in {attribute} is {parameter}",
                expected=f"{parameter}",
                operand=first + i,
                attribute=attribute,
            )


@RULES.register("while")
def while_(site: Site) -> Shape:
    """Return the state's shape: the same going into condition and body and coming out of body."""
    condition, body = site.callee("condition"), site.callee("body")
    check_arguments("condition", condition, site.operands)
    check_arguments("body", body, site.operands)
    if not compatible(condition.result, ArrayShape(PRED)):
        raise faults.CALLEE(
            f"the condition returns {condition.result}", expected="pred[]", attribute="condition"
        )
    state = site.operands[0]
    if state is not body.result and not compatible(body.result, state):
        raise faults.CALLEE(
            f"the body takes {state} and returns {body.result}",
            expected=f"{state}",
            attribute="body",
        )
    return body.result if site.verifying else state


@RULES.register("conditional")
def conditional(site: Site) -> Shape:
    """Return the common result of the branches, each of which takes one operand."""
    chooser, count = site.operands[0], len(site.operands) - 1
    is_pred = compatible(chooser, ArrayShape(PRED))
    names = branch_names(site, is_pred)
    if not is_pred and not compatible(chooser, ArrayShape(S32)):
        raise faults.OPERAND_KIND(
            f"conditional chooses by {chooser}", expected="pred[] or s32[]", operand=0
        )
    if len(names) != count or not count or (is_pred and count != 2):
        raise faults.OPERAND_NUMBER(
            f"conditional with {len(names)} branches and {count} operands for them",
            expected="two branches" if is_pred else "one operand for each branch",
        )
    programs = [(attribute, site.program_shape(name)) for attribute, name in names]
    for i, (attribute, program) in enumerate(programs):
        check_arguments(attribute, program, (site.operands[i + 1],), i + 1)
        if not compatible(program.result, programs[0][1].result):
            raise faults.CALLEE(
                f"branch {i} returns {program.result}",
                expected=f"{programs[0][1].result}, as branch 0",
                attribute=attribute,
            )
    result = programs[0][1].result
    for _, program in programs[1:]:
        result = _with_flags_of(result, program.result)
    return result


def branch_names(site: Site, is_pred: bool) -> list[tuple[str, str]]:
    """Return (attribute, computation name) of each branch, in order.

    A choice by pred names a true and a false computation, a choice by s32 a list.
    """
    if is_pred:
        both = ("true_computation", "false_computation")
        return [(key, site.attributes.text(key)) for key in both if key in site.attributes]
    written = site.attributes.get("branch_computations")
    if not isinstance(written, tuple):
        return []
    return [("branch_computations", str(name)) for name in written]


def _with_flags_of(shape: Shape, other: Shape) -> Shape:
    if shape is other:
        return shape
    if isinstance(shape, TupleShape) and isinstance(other, TupleShape):
        return TupleShape(tuple(map(_with_flags_of, shape.elements, other.elements)))
    if isinstance(shape, ArrayShape) and isinstance(other, ArrayShape) and other.dynamic:
        before = shape.dynamic or (False,) * shape.rank
        return with_dynamic(shape, [a or b for a, b in zip(before, other.dynamic, strict=True)])
    return shape


@RULES.register("fusion")
def fusion(site: Site) -> Shape:
    """Return the result of the fused computation, which may leave out the last operands."""
    program = site.callee("calls")
    check_arguments("calls", program, site.operands[: len(program.parameters)])
    from hloipu_compiler.inference.aliasing import check_aliasing

    check_aliasing(site)
    return program.result


@RULES.register("custom-call")
def custom_call(site: Site) -> Shape:
    """Return the declared shape; layout constraints and aliases must fit the operands."""
    shape = declared_shape(site)
    constraints = site.attributes.get("operand_layout_constraints")
    if isinstance(constraints, tuple):
        _check_constraints(site, constraints)
    if site.attributes.text("custom_call_target") == "GetRngSeed" and (
        site.operands or not compatible(shape, ArrayShape(U64))
    ):
        raise faults.DECLARED_STRUCTURE(
            f"GetRngSeed of {len(site.operands)} operands is declared as {shape}",
            expected="u64[] and no operands",
        )
    from hloipu_compiler.inference.aliasing import check_aliasing

    check_aliasing(site)
    return shape


def _check_constraints(site: Site, constraints: tuple[object, ...]) -> None:
    shapes = [shape for shape in constraints if isinstance(shape, ArrayShape | TupleShape)]
    if len(shapes) != len(site.operands):
        raise faults.OPERAND_NUMBER(
            f"{len(shapes)} operand_layout_constraints for {len(site.operands)} operands",
            expected=f"{len(site.operands)}",
            attribute="operand_layout_constraints",
        )
    for number, (wanted, actual) in enumerate(zip(shapes, site.operands, strict=True)):
        if not compatible(wanted, actual):
            raise faults.SIZE_MISMATCH(
                f"operand {number} is {actual}, its layout constraint {wanted}",
                expected=f"{wanted}",
                operand=number,
                attribute="operand_layout_constraints",
            )
