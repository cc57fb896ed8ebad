"""Shape rules: sources of values, moves of elements, sizes known only at run time.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.relations import (
    dynamic_at,
    dynamic_flags,
    make_array,
    same_type,
    unbounded,
    wider_type,
    with_dynamic,
)
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    braced,
    check_range,
    check_unique,
    declared_array,
    declared_shape,
    one_dimension,
    tuple_operand,
)
from hloipu_compiler.ir.attributes import PaddingDimension, SliceRange
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import PRED, S32

LARGEST_SIZE = 2**31 - 1
"""Sizes are handled as s32."""


@RULES.register("get-dimension-size")
def get_dimension_size(site: Site) -> Shape:
    """Return s32[]."""
    _sized_dimension(site)
    return ArrayShape(S32)


@RULES.register("set-dimension-size")
def set_dimension_size(site: Site) -> Shape:
    """Return the operand's shape with one dimension dynamic."""
    operand, along = _sized_dimension(site)
    size = array_operand(site, 1)
    if size.dimensions or size.element_type is not S32:
        raise faults.INDEX_OPERAND(f"a size of shape {size}", expected="s32[]", operand=1)
    flags = list(dynamic_flags(operand))
    flags[along] = True
    return with_dynamic(operand, flags)


def _sized_dimension(site: Site) -> tuple[ArrayShape, int]:
    operand = array_operand(site, 0)
    along = one_dimension(site, operand.rank)
    if operand.dimensions[along] > LARGEST_SIZE:
        raise faults.SHAPE_OVERFLOW(
            f"the size of dimension {along} of {operand}",
            expected=f"at most {LARGEST_SIZE}",
            operand=0,
        )
    return operand, along


@RULES.register("dynamic-reshape")
def dynamic_reshape(site: Site) -> Shape:
    """Return the declared shape, whose sizes are bounds; one s32 operand gives each real size."""
    operand, shape = array_operand(site, 0), declared_array(site)
    check_same_elements(site, operand, shape)
    if len(site.operands) != shape.rank + 1:
        raise faults.OPERAND_NUMBER(
            f"{len(site.operands) - 1} sizes for {shape}",
            expected=f"{shape.rank}, one for each dimension",
        )
    for number in range(1, len(site.operands)):
        size = array_operand(site, number)
        if size.element_type is not S32:
            raise faults.INDEX_OPERAND(f"a size of shape {size}", expected="s32[]", operand=number)
    return shape


@RULES.register("parameter")
def parameter(site: Site) -> Shape:
    """Return the declared shape."""
    return declared_shape(site)


@RULES.register("constant")
def constant(site: Site) -> Shape:
    """Return the declared shape, which holds values: no token, no opaque."""
    shape = declared_shape(site)
    if isinstance(shape, ArrayShape) and not shape.element_type.is_array:
        raise faults.DECLARED_STRUCTURE(f"a constant of shape {shape}", expected="an array")
    return shape


@RULES.register("iota")
def iota(site: Site) -> Shape:
    """Return the declared shape: an array of numbers with the dimension that is counted along."""
    shape = declared_array(site)
    check_range(site, "iota_dimension", (site.attributes.integer("iota_dimension"),), shape.rank)
    if shape.element_type is PRED:
        raise faults.ELEMENT_TYPE("iota of pred", expected="an integer, float or complex type")
    return shape


@RULES.register("copy", "opt-barrier", "domain")
def same_shape(site: Site) -> Shape:
    """Return the operand's shape, whatever it is."""
    return site.operands[0]


@RULES.register("broadcast")
def broadcast(site: Site) -> Shape:
    """Return the declared shape; `dimensions[i]` is where operand dimension i goes, equal in size.

    Where nothing is declared, XLA's parser takes `dimensions` as sizes to put in front.
    """
    operand, numbers = array_operand(site, 0), site.attributes.integers("dimensions")
    if site.declared is None:
        return _prefixed(site, operand, numbers)
    shape = declared_array(site)
    if shape.element_type is not operand.element_type:
        raise faults.ELEMENT_TYPES_DIFFER(
            f"broadcast of {operand} to {shape}", expected=operand.element_type.name, operand=0
        )
    if len(numbers) != operand.rank:
        raise faults.DIMENSION_COUNT(
            f"broadcast maps {len(numbers)} dimensions of {operand}",
            expected=f"{operand.rank} dimensions, one for each of the operand's",
            attribute="dimensions",
        )
    check_range(site, "dimensions", numbers, shape.rank)
    for i, (size, target) in enumerate(zip(operand.dimensions, numbers, strict=True)):
        if shape.dimensions[target] != size:
            raise faults.SIZE_MISMATCH(
                f"dimension {i} of {operand} is broadcast to dimension {target} of {shape}",
                expected=f"size {size} there",
                operand=0,
                hint="HLO does not stretch size 1: reshape it away first",
            )
    return shape


def _prefixed(site: Site, operand: ArrayShape, sizes: tuple[int, ...]) -> ArrayShape:
    written = "dimensions" in site.attributes or not operand.dimensions
    if not written or unbounded(operand) or any(size < 0 for size in sizes):
        raise faults.NOT_INFERABLE(
            f"the shape of a broadcast of {operand} cannot be inferred",
            expected="a result shape before the opcode",
            attribute="dimensions",
        )
    flags = (*(False for _ in sizes), *dynamic_flags(operand))
    return make_array(operand.element_type, (*sizes, *operand.dimensions), flags)


@RULES.register("reshape")
def reshape(site: Site) -> Shape:
    """Return the declared shape, which has the operand's element type and number of elements."""
    operand, shape = array_operand(site, 0), declared_array(site)
    check_same_elements(site, operand, shape)
    return shape


def check_same_elements(site: Site, operand: ArrayShape, shape: ArrayShape) -> None:
    """Check that element type and number of elements stay; unbounded sizes are not counted."""
    if shape.element_type is not operand.element_type:
        raise faults.ELEMENT_TYPES_DIFFER(
            f"{site.opcode} of {operand} to {shape}",
            expected=operand.element_type.name,
            operand=0,
            hint="use convert or bitcast-convert to change the type",
        )
    if unbounded(operand) or unbounded(shape):
        return
    if operand.element_count != shape.element_count:
        raise faults.ELEMENT_COUNT(
            f"{site.opcode} of {operand} to {shape}: {shape.element_count} elements",
            expected=f"{operand.element_count} elements",
            operand=0,
        )


@RULES.register("transpose")
def transpose(site: Site) -> Shape:
    """Return the permuted shape: size i is the operand's size `dimensions[i]`."""
    operand, order = array_operand(site, 0), site.attributes.integers("dimensions")
    if sorted(order) != list(range(operand.rank)):
        raise faults.DIMENSION_ORDER(
            f"transpose of {operand} by {braced(order)}",
            expected=f"a permutation of {braced(tuple(range(operand.rank)))}",
            attribute="dimensions",
        )
    sizes = [operand.dimensions[i] for i in order]
    flags = [dynamic_at(operand, i) for i in order] if operand.dynamic else ()
    return ArrayShape(operand.element_type, tuple(sizes), None, tuple(flags) if flags else None)


@RULES.register("reverse")
def reverse(site: Site) -> Shape:
    """Return the operand's shape; the reversed dimensions exist and come once each."""
    operand, numbers = array_operand(site, 0), site.attributes.integers("dimensions")
    check_unique(site, "dimensions", numbers)
    check_range(site, "dimensions", numbers, operand.rank)
    return operand


@RULES.register("slice")
def slice_(site: Site) -> Shape:
    """Return the sizes ceil((limit - start) / stride); ranges lie within the operand."""
    operand = array_operand(site, 0)
    ranges = site.attributes.slice_ranges()
    if len(ranges) != operand.rank:
        raise faults.DIMENSION_COUNT(
            f"slice of {operand} has {len(ranges)} ranges",
            expected=f"{operand.rank} ranges",
            attribute="slice",
        )
    sizes, flags = [], []
    for i, (start, limit, stride) in enumerate(ranges):
        _check_slice_range(operand, i, ranges[i])
        sizes.append((limit - start + stride - 1) // stride)
        bounded = operand.dimensions[i] != UNBOUNDED and dynamic_at(operand, i)
        flags.append(bounded and sizes[-1] != 1)
    return make_array(operand.element_type, sizes, flags)


def _check_slice_range(operand: ArrayShape, i: int, bounds: SliceRange) -> None:
    size = operand.dimensions[i]
    shown = f"[{bounds.start}:{bounds.limit}:{bounds.stride}]"
    if (
        bounds.start < 0
        or (size != UNBOUNDED and bounds.limit > size)
        or bounds.start > bounds.limit
    ):
        raise faults.OUT_OF_BOUNDS(
            f"slice {shown} of dimension {i} of {operand}",
            expected=f"0 <= start <= limit <= {'?' if size == UNBOUNDED else size}",
            attribute="slice",
        )
    if bounds.stride <= 0:
        raise faults.ATTRIBUTE_VALUE(
            f"slice {shown} has stride {bounds.stride}",
            expected="a stride of at least 1",
            attribute="slice",
            hint="to run backwards use reverse(…)",
        )


@RULES.register("pad")
def pad(site: Site) -> Shape:
    """Return low + size + high + interior * max(size - 1, 0); negative edges crop."""
    operand, value = array_operand(site, 0), array_operand(site, 1)
    edges = site.attributes.padding()
    _check_padding(operand, value, edges)
    sizes = []
    for i, (size, edge) in enumerate(zip(operand.dimensions, edges, strict=True)):
        if size == UNBOUNDED:
            sizes.append(size)
            continue
        sizes.append(size + edge.low + edge.high + max(size - 1, 0) * edge.interior)
        if sizes[-1] < 0:
            raise faults.OUT_OF_BOUNDS(
                f"dimension {i} of {operand} would have size {sizes[-1]}",
                expected="a size of at least 0",
                attribute="padding",
            )
    element_type = wider_type(operand.element_type, value.element_type)
    return make_array(element_type, sizes, dynamic_flags(operand))


def _check_padding(
    operand: ArrayShape, value: ArrayShape, edges: tuple[PaddingDimension, ...]
) -> None:
    if value.dimensions:
        raise faults.SIZE_MISMATCH(f"padding value {value}", expected="one number", operand=1)
    if not same_type(operand.element_type, value.element_type):
        raise faults.ELEMENT_TYPES_DIFFER(
            f"pad of {operand} with {value}", expected=operand.element_type.name, operand=1
        )
    if len(edges) != operand.rank:
        raise faults.DIMENSION_COUNT(
            f"padding for {len(edges)} dimensions of {operand}",
            expected=f"padding for {operand.rank} dimensions",
            attribute="padding",
        )
    if any(edge.interior < 0 for edge in edges):
        raise faults.ATTRIBUTE_VALUE(
            "negative interior padding", expected="at least 0", attribute="padding"
        )


@RULES.register("get-tuple-element")
def get_tuple_element(site: Site) -> Shape:
    """Return the shape of one element."""
    shape, index = tuple_operand(site), site.attributes.integer("index", -1)
    if not 0 <= index < len(shape.elements):
        raise faults.OUT_OF_BOUNDS(
            f"element {index} of a tuple of {len(shape.elements)}",
            expected=f"0 to {len(shape.elements) - 1}" if shape.elements else "no element: ()",
            attribute="index",
        )
    return shape.elements[index]


RULES.add({"tuple": lambda site: TupleShape(site.operands)})
