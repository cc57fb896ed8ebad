"""FFT, Cholesky decomposition and triangular solve.

Source: openxla/xla `xla/service/shape_inference.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.elementwise import check_kind
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import (
    complex_type,
    component_type,
    dynamic_flags,
    make_array,
    sizes_agree,
)
from hloipu_compiler.inference.site import RULES, Site, array_operand
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape
from hloipu_runtime.element_types import ElementType, Kind

_FLOAT_OR_COMPLEX = frozenset({Kind.FLOAT, Kind.COMPLEX})


@RULES.register("fft")
def fft(site: Site) -> Shape:
    """Return the transform's shape over the last 1 to 3 dimensions.

    RFFT halves the last size n to n // 2 + 1 complex numbers; IRFFT is its inverse.
    """
    operand, lengths = array_operand(site, 0), site.attributes.integers("fft_length")
    if not 1 <= len(lengths) <= 3 or operand.rank < len(lengths):
        raise faults.DIMENSION_COUNT(
            f"fft of {operand} over {len(lengths)} dimensions",
            expected=f"1 to {min(3, operand.rank)} dimensions",
            attribute="fft_length",
        )
    if min(lengths) < 0:
        raise _length_fault(operand, lengths)
    kind = site.attributes.text("fft_type")
    if kind == "RFFT":
        return _real_to_complex(operand, lengths)
    check_kind(site, operand, 0, frozenset({Kind.COMPLEX}))
    if kind == "IRFFT":
        return _complex_to_real(operand, lengths)
    if kind not in ("FFT", "IFFT"):
        raise faults.ATTRIBUTE_VALUE(
            f"fft_type={kind}", expected="FFT, IFFT, RFFT or IRFFT", attribute="fft_type"
        )
    return operand


def _real_to_complex(operand: ArrayShape, lengths: tuple[int, ...]) -> ArrayShape:
    element_type = complex_type(operand.element_type)
    if element_type is None:
        raise faults.ELEMENT_TYPE(
            f"RFFT of {operand.element_type.name}", expected="f32 or f64", operand=0
        )
    _check_lengths(operand, lengths, lengths, unbounded_fits=True)
    last = lengths[-1] // 2 + 1 if lengths[-1] else operand.dimensions[-1]
    return _with_last(operand, element_type, last)


def _complex_to_real(operand: ArrayShape, lengths: tuple[int, ...]) -> ArrayShape:
    half = lengths[-1] // 2 + 1
    if operand.dimensions[-1] == 0 and lengths[-1] == 0:
        half = 0
    _check_lengths(operand, lengths, (*lengths[:-1], half), unbounded_fits=False)
    return _with_last(operand, component_type(operand.element_type), lengths[-1])


def _check_lengths(
    operand: ArrayShape, lengths: tuple[int, ...], wanted: tuple[int, ...], unbounded_fits: bool
) -> None:
    sizes = operand.dimensions[operand.rank - len(wanted) :]
    last = len(wanted) - 1
    for i, (size, needed) in enumerate(zip(sizes, wanted, strict=True)):
        if size != needed and not (size == UNBOUNDED and (unbounded_fits or i == last)):
            raise _length_fault(operand, lengths)


def _length_fault(operand: ArrayShape, lengths: tuple[int, ...]) -> ShapeFault:
    shown = ",".join(map(str, lengths))
    return faults.SIZE_MISMATCH(
        f"fft_length={{{shown}}} of {operand}",
        expected="the operand's last sizes; for IRFFT its last size is length // 2 + 1",
        attribute="fft_length",
    )


def _with_last(operand: ArrayShape, element_type: ElementType, last: int) -> ArrayShape:
    flags = list(dynamic_flags(operand))
    flags[-1] = flags[-1] and operand.dimensions[-1] != UNBOUNDED
    if last == UNBOUNDED:
        flags[-1] = True
    return make_array(element_type, (*operand.dimensions[:-1], last), flags)


@RULES.register("cholesky")
def cholesky(site: Site) -> Shape:
    """Return the operand's shape: square matrices of floats or complex numbers."""
    operand = array_operand(site, 0)
    check_kind(site, operand, 0, _FLOAT_OR_COMPLEX)
    _check_square(site, operand)
    return operand


def _check_square(site: Site, shape: ArrayShape) -> None:
    if shape.rank < 2 or not sizes_agree(*shape.dimensions[-2:]):
        raise faults.SIZE_MISMATCH(
            f"{site.opcode} of {shape}",
            expected="square matrices in the last two dimensions",
            operand=0,
        )


@RULES.register("triangular-solve")
def triangular_solve(site: Site) -> Shape:
    """Return the shape of the right-hand sides; `left_side` says where the matrix stands."""
    matrix, sides = array_operand(site, 0), array_operand(site, 1)
    check_kind(site, matrix, 0, _FLOAT_OR_COMPLEX)
    if matrix.element_type is not sides.element_type:
        raise faults.ELEMENT_TYPES_DIFFER(
            f"triangular-solve of {matrix} and {sides}",
            expected=matrix.element_type.name,
            operand=1,
        )
    _check_square(site, matrix)
    shared = -2 if site.attributes.flag("left_side") else -1
    fits = (
        sides.rank == matrix.rank
        and sides.dimensions[:-2] == matrix.dimensions[:-2]
        and sizes_agree(matrix.dimensions[-1], sides.dimensions[shared])
    )
    if not fits:
        raise faults.SIZE_MISMATCH(
            f"triangular-solve of {matrix} and {sides}",
            expected=f"batch sizes of {matrix} and {matrix.dimensions[-1]} in dimension {shared}",
            operand=1,
        )
    transpose = site.attributes.text("transpose_a")
    if transpose not in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        raise faults.ATTRIBUTE_VALUE(
            f"transpose_a={transpose or '(missing)'}",
            expected="NO_TRANSPOSE, TRANSPOSE or ADJOINT",
            attribute="transpose_a",
        )
    return sides
