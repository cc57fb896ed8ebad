"""Operations that apply a computation along dimensions: reduce, map, scan.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`
(`HandleScan`, `HandleMap`).
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.reducers import (
    check_exact_types,
    check_reducer,
    reduced_inputs,
    scalar_parameter,
)
from hloipu_compiler.inference.relations import dynamic_at, make_array, same_sizes, same_type
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operands,
    braced,
    check_range,
    check_unique,
    one_dimension,
)
from hloipu_compiler.ir.attributes import ProgramShape
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible


@RULES.register("reduce")
def reduce(site: Site) -> Shape:
    """Return the inputs' sizes without the reduced dimensions, one result for each input."""
    inputs = reduced_inputs(site)
    first, gone = inputs[0], site.attributes.integers("dimensions")
    check_range(site, "dimensions", gone, first.rank)
    check_unique(site, "dimensions", gone)
    program = site.callee("to_apply")
    types = [shape.element_type for shape in inputs]
    element_types = check_reducer("to_apply", program, types, site.operands[len(inputs) :])
    check_exact_types(site, program)
    reduced = set(gone)
    remaining_dims = [d for d in range(first.rank) if d not in reduced]
    sizes = [first.dimensions[d] for d in remaining_dims]
    flags = [dynamic_at(first, d) for d in remaining_dims] if first.dynamic else ()
    results = tuple(make_array(element_type, sizes, flags) for element_type in element_types)
    return TupleShape(results) if isinstance(program.result, TupleShape) else results[0]


@RULES.register("map")
def map_(site: Site) -> Shape:
    """Return the operands' sizes with the element type that the scalar computation returns."""
    shapes = array_operands(site)
    shape = _common_shape(shapes)
    program = site.callee("to_apply")
    _check_mapped(shapes, program)
    if not site.verifying:
        _check_all_dimensions(site, shape)
    check_exact_types(site, program)
    result = program.result
    if not isinstance(result, ArrayShape):
        return result
    return make_array(result.element_type, shape.dimensions, shape.dynamic or ())


def _common_shape(shapes: list[ArrayShape]) -> ArrayShape:
    common = shapes[0]
    for number, shape in enumerate(shapes[1:], 1):
        if same_sizes(shape, common):
            continue
        same = same_type(shape.element_type, common.element_type)
        if same and not shape.dimensions:
            continue
        if same and not common.dimensions:
            common = shape
            continue
        raise faults.SIZE_MISMATCH(
            f"map over {common} and {shape}", expected=f"the sizes of {common}", operand=number
        )
    return common


def _check_all_dimensions(site: Site, shape: ArrayShape) -> None:
    numbers = site.attributes.integers("dimensions")
    if "dimensions" in site.attributes and numbers != tuple(range(shape.rank)):
        raise faults.DIMENSION_COUNT(
            f"map over dimensions {braced(numbers)} of {shape}",
            expected=braced(tuple(range(shape.rank))),
            attribute="dimensions",
        )


def _check_mapped(shapes: list[ArrayShape], program: ProgramShape) -> None:
    fits = len(program.parameters) == len(shapes) and all(
        scalar_parameter(parameter, shape.element_type)
        for parameter, shape in zip(program.parameters, shapes, strict=True)
    )
    result = program.result
    if not fits or not (isinstance(result, ArrayShape) and result.is_scalar):
        wanted = ", ".join(f"{shape.element_type.name}[]" for shape in shapes)
        shown = ", ".join(map(str, program.parameters))
        raise faults.REDUCER(
            f"the computation in to_apply is ({shown}) -> {result}",
            expected=f"({wanted}) -> one scalar",
            attribute="to_apply",
        )


@RULES.register("scan")
def scan(site: Site) -> Shape:
    """Return the outputs stacked along the scanned dimension, then the carries.

    `to_apply` takes a slice of each input and the carries, and returns a slice of each output and
    the carries, in the same order.
    """
    carries = site.attributes.integer("num_carries")
    program = site.callee("to_apply")
    roots = program.result.elements if isinstance(program.result, TupleShape) else (program.result,)
    inputs = len(site.operands) - carries
    outputs = len(roots) - carries
    _check_scan_counts(site, program, carries, inputs, outputs)
    along, length = _scanned(site, inputs)
    if site.verifying:
        _check_scanned(site, program, carries, along, length)
    results = tuple(
        _stack(root, along, length) if i < outputs else root for i, root in enumerate(roots)
    )
    as_tuple = program.result if site.declared is None else site.declared
    if len(results) == 1 and not isinstance(as_tuple, TupleShape):
        return results[0]
    return TupleShape(results)


def _check_scanned(
    site: Site, program: ProgramShape, carries: int, along: int, length: int
) -> None:
    inputs = len(site.operands) - carries
    for i, (operand, parameter) in enumerate(zip(site.operands, program.parameters, strict=True)):
        wanted = _slice(site, operand, i, along, length) if i < inputs else operand
        if not compatible(parameter, wanted):
            raise _scan_fault(f"parameter {i} of shape {parameter}", f"{wanted}")
    roots = program.result.elements if isinstance(program.result, TupleShape) else (program.result,)
    for i in range(carries):
        before, after = program.parameters[inputs + i], roots[len(roots) - carries + i]
        if not compatible(before, after):
            raise _scan_fault(f"carry {i} of shape {after}", f"{before}")


def _check_scan_counts(
    site: Site, program: ProgramShape, carries: int, inputs: int, outputs: int
) -> None:
    if carries < 0 or inputs < 0 or outputs < 0 or (inputs == 0 and outputs == 0):
        raise faults.ATTRIBUTE_VALUE(
            f"num_carries={carries} of {len(site.operands)} operands",
            expected="fewer carries than operands or results",
            attribute="num_carries",
        )
    if len(program.parameters) != len(site.operands):
        raise _scan_fault(f"{len(program.parameters)} parameters", f"{len(site.operands)}")


def _scanned(site: Site, inputs: int) -> tuple[int, int]:
    if inputs:
        first = array_operands(site, 0, 1)[0]
    else:
        declared = site.declared
        shape = (
            declared.elements[0]
            if isinstance(declared, TupleShape) and declared.elements
            else declared
        )
        if not isinstance(shape, ArrayShape):
            raise faults.NOT_INFERABLE(
                "a scan without inputs", expected="a result shape that says how long it runs"
            )
        first = shape
    along = one_dimension(site, first.rank)
    return along, first.dimensions[along]


def _slice(site: Site, shape: Shape, number: int, along: int, length: int) -> ArrayShape:
    if (
        not isinstance(shape, ArrayShape)
        or along >= shape.rank
        or shape.dimensions[along] != length
    ):
        raise faults.SIZE_MISMATCH(
            f"scan over {shape} along dimension {along}",
            expected=f"size {length} in dimension {along}",
            operand=number,
        )
    flags = (*shape.dynamic[:along], *shape.dynamic[along + 1 :]) if shape.dynamic else ()
    sizes = (*shape.dimensions[:along], *shape.dimensions[along + 1 :])
    return make_array(shape.element_type, sizes, flags)


def _stack(shape: Shape, along: int, length: int) -> ArrayShape:
    if not isinstance(shape, ArrayShape) or along > shape.rank:
        raise _scan_fault(f"an output of shape {shape}", f"an array of rank {along} or more")
    flags = (*shape.dynamic[:along], False, *shape.dynamic[along:]) if shape.dynamic else ()
    sizes = (*shape.dimensions[:along], length, *shape.dimensions[along:])
    return make_array(shape.element_type, sizes, flags)


def _scan_fault(problem: str, expected: str) -> ShapeFault:
    return faults.REDUCER(
        f"the computation in to_apply has {problem}", expected=expected, attribute="to_apply"
    )
