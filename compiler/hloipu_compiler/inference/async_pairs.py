"""Asynchronous operations, native and `async-*`; tokens, and operations on channels.

Source: openxla/xla `xla/service/hlo_verifier.cc`. That a done follows its start is a question about
the graph, asked by the verifier; here their shapes meet.

In dumps from before June 2018 infeed, outfeed,
send and recv have no token; then their results have none either.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.aliasing import check_aliasing
from hloipu_compiler.inference.collectives import all_reduce, check_in_place, gathered_shapes
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    declared_shape,
    declared_tuple,
    token_operand,
    tuple_operand,
)
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import TOKEN, U32

TOKEN_SHAPE = ArrayShape(TOKEN)
CONTEXT_SHAPE = ArrayShape(U32)
"""The handle that a start hands to its done."""


@RULES.register("add-dependency")
def add_dependency(site: Site) -> Shape:
    """Return the first operand's shape; the second is a token."""
    if site.verifying:
        token_operand(site, 1)
    return site.operands[0]


@RULES.register("infeed")
def infeed(site: Site) -> Shape:
    """Return (data, token); the data's shape is declared."""
    if not site.operands:
        return declared_shape(site)
    token_operand(site, 0)
    return TupleShape((declared_tuple(site, 1).elements[0], TOKEN_SHAPE))


@RULES.register("outfeed")
def outfeed(site: Site) -> Shape:
    """Return a token; `outfeed_shape` is the operand's shape with its layout."""
    stated_shape = site.attributes.get("outfeed_shape")
    if isinstance(stated_shape, ArrayShape | TupleShape | BufferShape) and not compatible(
        stated_shape, site.operands[0]
    ):
        raise faults.SIZE_MISMATCH(
            f"outfeed of {site.operands[0]}",
            expected=f"{stated_shape}, as in outfeed_shape",
            operand=0,
            attribute="outfeed_shape",
        )
    if len(site.operands) == 1:
        return declared_shape(site)
    token_operand(site, 1)
    return TOKEN_SHAPE


@RULES.register("send")
def send(site: Site) -> Shape:
    """Return (data, u32[], token)."""
    if len(site.operands) == 1:
        return TupleShape((site.operands[0], CONTEXT_SHAPE))
    return TupleShape((site.operands[0], CONTEXT_SHAPE, TOKEN_SHAPE))


@RULES.register("send-done")
def send_done(site: Site) -> Shape:
    """Return a token."""
    start = site.operands[0]
    if isinstance(start, TupleShape) and len(start.elements) == 2:
        return declared_shape(site)
    return TOKEN_SHAPE


@RULES.register("recv")
def recv(site: Site) -> Shape:
    """Return (data, u32[], token); the data's shape is declared."""
    data = declared_tuple(site, 1).elements[0]
    if not site.operands:
        return TupleShape((data, CONTEXT_SHAPE))
    return TupleShape((data, CONTEXT_SHAPE, TOKEN_SHAPE))


@RULES.register("recv-done")
def recv_done(site: Site) -> Shape:
    """Return (data, token)."""
    start = tuple_operand(site, fewest=2)
    if len(start.elements) == 2:
        return start.elements[0]
    return TupleShape((start.elements[0], TOKEN_SHAPE))


RULES.add({"after-all": lambda site: TOKEN_SHAPE})


@RULES.register("copy-done")
def copy_done(site: Site) -> Shape:
    """Return the destination, which has the source's shape."""
    start = tuple_operand(site, fewest=2)
    if not compatible(start.elements[0], start.elements[1]):
        raise faults.SIZE_MISMATCH(
            f"copy from {start.elements[1]} to {start.elements[0]}",
            expected="equal shapes",
            operand=0,
        )
    return start.elements[0]


@RULES.register("all-gather-start")
def all_gather_start(site: Site) -> Shape:
    """Return (operand or operands, gathered)."""
    shapes = tuple(gathered_shapes(site, declared_tuple(site, 2).elements[1]))
    if len(site.operands) == 1:
        return TupleShape((site.operands[0], shapes[0]))
    return TupleShape((TupleShape(site.operands), TupleShape(shapes)))


@RULES.register("all-gather-done", "collective-permute-done")
def second_of_start(site: Site) -> Shape:
    """Return the result that a start carries in second place."""
    return tuple_operand(site, fewest=2).elements[1]


@RULES.register("collective-permute-start")
def collective_permute_start(site: Site) -> Shape:
    """Return (input, output, context…); what the contexts are is declared."""
    if "slice_sizes" in site.attributes:
        check_in_place(site)
        pair: tuple[Shape, Shape] = (site.operands[0], site.operands[1])
    elif len(site.operands) == 1:
        operand = array_operand(site, 0)
        pair = (operand, operand)
    else:
        operands = TupleShape(site.operands)
        pair = (operands, operands)
    declared = site.declared
    contexts = declared.elements[2:] if isinstance(declared, TupleShape) else ()
    return TupleShape((*pair, *contexts))


@RULES.register("async-start")
def async_start(site: Site) -> Shape:
    """Return the declared ((operands…), result, state…), which the wrapped computation must fit.

    Operands and results may be bound later, by updates: the start's are then a prefix.
    """
    shape = _async_shape(site)
    bound = shape.elements[0]
    if not compatible(bound, TupleShape(site.operands)):
        raise faults.CALLEE(
            f"{site.opcode} of {TupleShape(site.operands)} is declared as {shape}",
            expected=f"({TupleShape(site.operands)}, result, …)",
        )
    program = site.callee("calls")
    _check_wrapped(shape, program)
    full_shape = TupleShape((TupleShape(program.parameters), program.result, *shape.elements[2:]))
    check_aliasing(site, full_shape)
    return shape


@RULES.register("async-update")
def async_update(site: Site) -> Shape:
    """Return the declared shape: the operand's, with what the further operands bind added."""
    shape = _async_shape(site)
    before = tuple_operand(site, fewest=2)
    for i in (0, 1):
        if not is_prefix(before.elements[i], shape.elements[i]):
            raise faults.CALLEE(
                f"async-update of {before} is declared as {shape}",
                expected=f"at index {i} {before.elements[i]} or more",
                operand=0,
            )
    bound, old = shape.elements[0], before.elements[0]
    added = bound.elements if isinstance(bound, TupleShape) else ()
    added = added[len(old.elements) if isinstance(old, TupleShape) else 0 :]
    if not compatible(TupleShape(added), TupleShape(site.operands[1:])):
        raise faults.CALLEE(
            f"async-update binds {TupleShape(site.operands[1:])}", expected=f"{TupleShape(added)}"
        )
    if "calls" in site.attributes:
        _check_wrapped(shape, site.callee("calls"))
    return shape


@RULES.register("async-done")
def async_done(site: Site) -> Shape:
    """Return the result of the wrapped computation."""
    start = tuple_operand(site, fewest=2)
    if "calls" in site.attributes:
        return site.callee("calls").result
    result = start.elements[1]
    declared = declared_shape(site)
    return declared if is_prefix(result, declared) else result


def _async_shape(site: Site) -> TupleShape:
    shape = declared_tuple(site, 2)
    if not isinstance(shape.elements[0], TupleShape):
        raise faults.DECLARED_STRUCTURE(
            f"{site.opcode} is declared as {shape}",
            expected="((operand shapes…), result shape, state…)",
        )
    return shape


def _check_wrapped(shape: TupleShape, program: ProgramShape) -> None:
    wanted = (TupleShape(program.parameters), program.result)
    for i in (0, 1):
        if not is_prefix(shape.elements[i], wanted[i]):
            raise faults.CALLEE(
                f"the wrapped computation is {wanted[0]} -> {wanted[1]}",
                expected=f"{shape.elements[i]} at index {i} of the declared shape",
                attribute="calls",
            )


def is_prefix(part: Shape, full_shape: Shape) -> bool:
    """Whether a shape is equal to another or a tuple of prefixes of its first elements."""
    if compatible(part, full_shape):
        return True
    if not isinstance(part, TupleShape):
        return False
    if not part.elements:
        return True
    return (
        isinstance(full_shape, TupleShape)
        and len(part.elements) <= len(full_shape.elements)
        and all(map(is_prefix, part.elements, full_shape.elements))
    )


RULES.add(
    {
        "copy-start": lambda site: TupleShape((site.operands[0], site.operands[0], CONTEXT_SHAPE)),
        "all-reduce-start": all_reduce,
        "all-reduce-done": lambda site: site.operands[0],
    }
)
