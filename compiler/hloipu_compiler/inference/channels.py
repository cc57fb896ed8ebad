"""Tokens, and operations on channels to the host or another device.

Source: openxla/xla `xla/service/hlo_verifier.cc`. In dumps from before June 2018 infeed, outfeed,
send and recv have no token; then their results have none either.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    declared_shape,
    declared_tuple,
    token_operand,
    tuple_operand,
)
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import TOKEN, U32

TOKEN_SHAPE = ArrayShape(TOKEN)
CONTEXT_SHAPE = ArrayShape(U32)
"""The handle that a start hands to its done."""


def add_dependency(site: Site) -> Shape:
    """Return the first operand's shape; the second is a token."""
    if site.verifying:
        token_operand(site, 1)
    return site.operands[0]


def infeed(site: Site) -> Shape:
    """Return (data, token); the data's shape is declared."""
    if not site.operands:
        return declared_shape(site)
    token_operand(site, 0)
    return TupleShape((declared_tuple(site, 1).elements[0], TOKEN_SHAPE))


def outfeed(site: Site) -> Shape:
    """Return a token; `outfeed_shape` is the operand's shape with its layout."""
    stated_shape = site.attributes.get("outfeed_shape")
    if isinstance(stated_shape, ArrayShape | TupleShape | BufferShape) and not compatible(
        stated_shape, site.operands[0]
    ):
        raise ShapeFault(
            faults.SIZE_MISMATCH,
            f"outfeed of {site.operands[0]}",
            expected=f"{stated_shape}, as in outfeed_shape",
            operand=0,
            attribute="outfeed_shape",
        )
    if len(site.operands) == 1:
        return declared_shape(site)
    token_operand(site, 1)
    return TOKEN_SHAPE


def send(site: Site) -> Shape:
    """Return (data, u32[], token)."""
    if len(site.operands) == 1:
        return TupleShape((site.operands[0], CONTEXT_SHAPE))
    return TupleShape((site.operands[0], CONTEXT_SHAPE, TOKEN_SHAPE))


def send_done(site: Site) -> Shape:
    """Return a token."""
    start = site.operands[0]
    if isinstance(start, TupleShape) and len(start.elements) == 2:
        return declared_shape(site)
    return TOKEN_SHAPE


def recv(site: Site) -> Shape:
    """Return (data, u32[], token); the data's shape is declared."""
    data = declared_tuple(site, 1).elements[0]
    if not site.operands:
        return TupleShape((data, CONTEXT_SHAPE))
    return TupleShape((data, CONTEXT_SHAPE, TOKEN_SHAPE))


def recv_done(site: Site) -> Shape:
    """Return (data, token)."""
    start = tuple_operand(site, fewest=2)
    if len(start.elements) == 2:
        return start.elements[0]
    return TupleShape((start.elements[0], TOKEN_SHAPE))


RULES.add(
    {
        "after-all": lambda site: TOKEN_SHAPE,
        "add-dependency": add_dependency,
        "infeed": infeed,
        "outfeed": outfeed,
        "send": send,
        "send-done": send_done,
        "recv": recv,
        "recv-done": recv_done,
    }
)
