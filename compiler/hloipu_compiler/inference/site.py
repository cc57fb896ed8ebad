"""The instruction that a shape rule is applied to, with accessors that most rules need."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import Attributes, ProgramShape
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.element_types import OPAQUE, TOKEN
from hloipu_runtime.late_table import LateTable


class Participants(NamedTuple):
    """Number of devices that run the module, from its header; 1 by default."""

    replicas: int = 1
    partitions: int = 1


ONE_DEVICE = Participants()
_CONVERSIONS = frozenset({"convert", "stochastic-convert", "reduce-precision"})


class Site(NamedTuple):
    """An instruction as its rule sees it: shapes instead of operands.

    `declared` is None while the parser infers a shape that the text leaves out. XLA's parser then
    accepts more than its verifier (implicit broadcasts, mixed precision), and so do the rules.
    """

    opcode: str
    operands: tuple[Shape, ...]
    attributes: Attributes
    declared: Shape | None
    program_shape: Callable[[str], ProgramShape]
    participants: Participants = ONE_DEVICE

    @property
    def verifying(self) -> bool:
        """Whether the strict rules of the verifier hold, because the shape is known."""
        return self.declared is not None

    def callee(self, attribute: str) -> ProgramShape:
        """Return the signature of the computation that an attribute names."""
        return self.program_shape(self.attributes.text(attribute))


Rule = Callable[[Site], Shape]

RULES: LateTable[Rule] = LateTable(
    "hloipu_compiler.inference",
    {
        "async_pairs": "after-all add-dependency infeed outfeed send send-done recv recv-done "
        "copy-start copy-done all-gather-start all-gather-done all-reduce-start "
        "all-reduce-done collective-permute-start collective-permute-done async-start "
        "async-update async-done",
        "batch_norm": "batch-norm-training batch-norm-inference batch-norm-grad",
        "calls": "call while conditional fusion custom-call",
        "collectives": "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all "
        "collective-broadcast collective-permute partition-id replica-id",
        "conversions": _CONVERSIONS | {"bitcast-convert", "bitcast"},
        "convolution": "convolution reduce-window select-and-scatter",
        "dots": "dot scaled-dot ragged-dot",
        "elementwise": ELEMENTWISE - _CONVERSIONS,
        "gather_scatter": "gather scatter",
        "indexing": "dynamic-slice dynamic-update-slice",
        "joining": "concatenate",
        "linear_algebra": "fft cholesky triangular-solve",
        "movement": "parameter constant iota copy opt-barrier domain broadcast reshape transpose "
        "reverse slice pad tuple get-tuple-element get-dimension-size set-dimension-size "
        "dynamic-reshape",
        "random": "rng rng-bit-generator rng-get-and-update-state",
        "reductions": "reduce map scan",
        "sorting": "sort topk",
    },
)
"""The rule of every opcode that is not legacy."""


def is_array(shape: Shape) -> bool:
    """Whether a shape is an array of numbers: no tuple, buffer, token or opaque."""
    return isinstance(shape, ArrayShape) and shape.element_type.is_array


def array_operand(site: Site, number: int) -> ArrayShape:
    """Return the shape of an operand that must be an array of numbers."""
    shape = site.operands[number]
    if isinstance(shape, ArrayShape):
        element_type = shape.element_type
        if element_type is not TOKEN and element_type is not OPAQUE:
            return shape
    raise faults.OPERAND_KIND(
        f"operand {number} of {site.opcode} is {shape}",
        expected="an array",
        operand=number,
        hint=_kind_hint(shape),
    )


def array_operands(site: Site, start: int = 0, stop: int | None = None) -> list[ArrayShape]:
    """Return the shapes of a range of operands that must all be arrays of numbers."""
    end = len(site.operands) if stop is None else stop
    return [array_operand(site, number) for number in range(start, end)]


def tuple_operand(site: Site, fewest: int = 0) -> TupleShape:
    """Return the shape of the first operand: a tuple of at least `fewest` elements."""
    shape = site.operands[0]
    if isinstance(shape, TupleShape) and len(shape.elements) >= fewest:
        return shape
    raise faults.OPERAND_KIND(
        f"operand 0 of {site.opcode} is {shape}",
        expected=f"a tuple of at least {fewest} elements" if fewest else "a tuple",
        operand=0,
    )


def token_operand(site: Site, number: int) -> None:
    """Check that an operand is a token."""
    shape = site.operands[number]
    if not isinstance(shape, ArrayShape) or shape.element_type is not TOKEN:
        raise faults.TOKEN_EXPECTED(
            f"operand {number} of {site.opcode} is {shape}",
            expected="token[]",
            operand=number,
            hint="make one with after-all() or take it from the operation that must come first",
        )


def declared_shape(site: Site) -> Shape:
    """Return the declared shape of an operation whose shape cannot be inferred."""
    if site.declared is None:
        raise faults.NOT_INFERABLE(
            f"the shape of {site.opcode} cannot be inferred",
            expected="a result shape before the opcode",
            hint=f"write it, for example: x = f32[2,3] {site.opcode}(…)",
        )
    return site.declared


def declared_array(site: Site) -> ArrayShape:
    """Return the declared shape of an operation that always gives one array."""
    shape = declared_shape(site)
    if isinstance(shape, ArrayShape) and shape.element_type.is_array:
        return shape
    raise faults.DECLARED_STRUCTURE(f"{site.opcode} is declared as {shape}", expected="an array")


def declared_tuple(site: Site, fewest: int) -> TupleShape:
    """Return the declared shape of an operation that always gives a tuple."""
    shape = declared_shape(site)
    if isinstance(shape, TupleShape) and len(shape.elements) >= fewest:
        return shape
    raise faults.DECLARED_STRUCTURE(
        f"{site.opcode} is declared as {shape}", expected=f"a tuple of at least {fewest} elements"
    )


def one_dimension(site: Site, rank: int) -> int:
    """Return the single dimension number of `dimensions={d}`, which must be below the rank."""
    numbers = site.attributes.integers("dimensions")
    if len(numbers) != 1:
        raise faults.DIMENSION_COUNT(
            f"{site.opcode} names {len(numbers)} dimensions",
            expected="exactly one dimension",
            attribute="dimensions",
        )
    check_range(site, "dimensions", numbers, rank)
    return numbers[0]


def check_range(site: Site, attribute: str, numbers: tuple[int, ...], rank: int) -> None:
    """Check that dimension numbers are at least 0 and below a rank."""
    for number in numbers:
        if not 0 <= number < rank:
            raise faults.DIMENSION_RANGE(
                f"dimension {number} in {attribute} of {site.opcode} does not exist",
                expected=f"a dimension from 0 to {rank - 1}" if rank else "no dimension: rank is 0",
                attribute=attribute,
            )


def check_unique(site: Site, attribute: str, numbers: tuple[int, ...]) -> None:
    """Check that no dimension number comes twice."""
    if len(set(numbers)) != len(numbers):
        raise faults.DIMENSION_ORDER(
            f"{attribute} of {site.opcode} repeats a dimension: {braced(numbers)}",
            expected="each dimension at most once",
            attribute=attribute,
        )


def check_ascending(site: Site, attribute: str, numbers: tuple[int, ...]) -> None:
    """Check that dimension numbers are strictly ascending."""
    check_unique(site, attribute, numbers)
    if any(a > b for a, b in pairwise(numbers)):
        raise faults.DIMENSION_ORDER(
            f"{attribute} of {site.opcode} is not sorted: {braced(numbers)}",
            expected=braced(tuple(sorted(numbers))),
            attribute=attribute,
        )


def braced(numbers: tuple[int, ...]) -> str:
    """Return numbers as the text writes them, e.g. `{0,2}`."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _kind_hint(shape: Shape) -> str:
    if isinstance(shape, TupleShape):
        return "take an element with get-tuple-element first"
    if isinstance(shape, BufferShape):
        return "read the buffer with a custom-call to Unpin first"
    return ""
