"""Worker cycles of elementwise ops, by op and element type.

Tables: graphcore/poplibs: lib/popops/popopsCycleEstimators.hpp. Rates are written as there is
measured: `6/2` is six cycles for two elements, loads and stores included; `2/v` two cycles for one
vector of 64 bits, `4` four for one element, both without loads, stores and the loop. `~` marks
rates that rest on no source. Averages on random data: transcendental functions depend on theirs.
"""

from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind


class Rate(NamedTuple):
    """Cycles of one iteration of an op's loop."""

    cycles: int
    elements: int
    """Of one iteration; 0: a vector."""
    complete: bool
    """Whether loads, stores and the loop are included."""
    assumed: bool


_COLUMNS = ("f32", "f16", "s32", "s64", "pred")
_UNARY_ROWS = """
abs                    1      1     2     10    -
acos                   ~110   ~110  -     -     -
acosh                  ~40/1  ~30/1 -     -     -
asin                   102    102   -     -     -
asinh                  ~40/1  ~30/1 -     -     -
atanh                  ~30/1  ~20/1 -     -     -
cbrt                   27/v   17/v  -     -     -
ceil                   2/v    2/v   -     -     -
cosine                 2300   25/1  -     -     -
cosh                   ~16/2  ~12/4 -     -     -
count-leading-zeros    -      -     1     ~4    -
erf                    41/1   13/1  -     -     -
exponential            6/2    4/4   -     -     -
exponential-minus-one  4      5/v   -     -     -
floor                  2/v    2/v   -     -     -
imag                   ~2/2   ~2/4  ~2    ~3    ~2
is-finite              5/v    5/v   -     -     -
log                    12/2   4/4   -     -     -
log-plus-one           18/v   18/v  -     -     -
logistic               12/2   6/4   -     -     -
negate                 2/2    2/4   2     5     -
not                    -      -     1/v   3/v   17
popcnt                 -      -     1     ~3    -
real                   ~2/2   ~2/4  ~2    ~3    ~2
reduce-precision       ~6/v   ~6/v  -     -     -
round-nearest-afz      2/v    2/v   -     -     -
round-nearest-even     2/v    2/v   -     -     -
rsqrt                  8/2    19/4  -     -     -
sign                   5/v    5/v   5     ~10   -
sine                   2300   25/1  -     -     -
sinh                   ~16/2  ~12/4 -     -     -
sqrt                   10/2   23/4  110   ~220  -
tan                    5100/1 5700/1 -    -     -
tanh                   12/2   4/4   -     -     -
bitcast-convert        ~2/2   ~2/4  ~2/2  ~2/1  ~2/4
copy                   ~2/2   ~2/4  ~2/2  ~2/1  ~2/4
"""
_BINARY_ROWS = """
add                    1/v    1/v   7/1   11/1  5/4
subtract               1/v    1/v   7/1   11/1  5/4
multiply               1/v    1/v   7/1   30/1  5/4
divide                 10/2   21/4  277/1 130/1 -
remainder              133/2  300/4 292/1 166/1 -
maximum                3/2    4/4   7/1   15/1  5/4
minimum                3/2    4/4   7/1   15/1  5/4
power                  312/1  325/1 32/1  ~64/1 -
atan2                  272/2  578/4 -     -     -
and                    -      -     7/1   9/1   5/4
or                     -      -     7/1   9/1   5/4
xor                    -      -     7/1   9/1   5/4
mulhi                  -      -     ~20/1 ~60/1 -
shift-left             -      -     7/1   18/1  -
shift-right-logical    -      -     7/1   6/1   -
shift-right-arithmetic -      -     7/1   19/1  -
complex                ~4/2   ~4/4  -     -     -
stochastic-convert     ~24/2  ~24/4 -     -     -
compare-EQ             14/4   9/4   22/4  48/4  6/4
compare-NE             20/4   11/4  22/4  48/4  5/4
compare-GT             14/4   9/4   22/4  56/4  31/4
compare-LT             14/4   9/4   22/4  56/4  28/4
compare-GE             14/4   9/4   26/4  62/4  28/4
compare-LE             14/4   9/4   26/4  62/4  28/4
"""
_SCALAR_ROWS = """
add                    1/v    1/v   6/1   9/1   4/4
subtract               1/v    1/v   6/1   9/1   4/4
multiply               1/v    1/v   6/1   26/1  4/4
divide                 6/2    8/2   277/1 103/1 -
remainder              93/2   225/4 280/1 137/1 -
maximum                3/2    3/4   6/1   14/1  4/4
minimum                3/2    3/4   6/1   14/1  4/4
power                  312/1  325/1 23/1  ~46/1 -
and                    -      -     6/1   7/1   4/4
or                     -      -     6/1   7/1   4/4
xor                    -      -     6/1   7/1   4/4
shift-left             -      -     6/1   16/1  -
shift-right-logical    -      -     6/1   5/1   -
shift-right-arithmetic -      -     6/1   17/1  -
compare-EQ             12/4   8/4   16/4  32/4  14/4
compare-NE             18/4   10/4  16/4  32/4  4/4
compare-GT             12/4   8/4   16/4  38/4  12/4
compare-LT             12/4   8/4   16/4  38/4  16/4
compare-GE             12/4   8/4   20/4  50/4  12/4
compare-LE             12/4   8/4   20/4  50/4  16/4
"""
UNKNOWN = Rate(20, 1, complete=True, assumed=True)
"""Of an op that a column has no entry for."""


def _read(text: str) -> Rate | None:
    if text == "-":
        return None
    assumed = text.startswith("~")
    cycles, _, elements = text.lstrip("~").partition("/")
    if elements == "v":
        return Rate(int(cycles), 0, complete=False, assumed=assumed)
    return Rate(int(cycles), int(elements or 1), complete=bool(elements), assumed=assumed)


def _table(rows: str) -> dict[tuple[str, str], Rate]:
    table = {}
    for row in rows.split("\n"):
        op, *cells = row.split() or [""]
        for column, cell in zip(_COLUMNS, cells, strict=False):
            rate = _read(cell)
            if rate is not None:
                table[op, column] = rate
    return table


_UNARY, _BINARY, _SCALAR = _table(_UNARY_ROWS), _table(_BINARY_ROWS), _table(_SCALAR_ROWS)


@lru_cache(maxsize=1024)
def column_of(element_type: str) -> str:
    """Return the type of the tables that stands in for an element type."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.PREDICATE:
        return "pred"
    if element.is_integer:
        return "s64" if element.bits == 64 else "s32"
    if element.is_float and element.bits < 16:
        return "f16"
    return "f16" if element_type == "f16" else "f32"


@lru_cache(maxsize=1024)
def rate_of(op: str, element_type: str, *, scalar: bool = False) -> Rate:
    """Return the rate of an op on a type; `scalar`: one of two operands is one number.

    `op` is the HLO opcode, for compare with its direction (`compare-LT`).
    """
    column = column_of(element_type)
    tables = (_SCALAR, _BINARY, _UNARY) if scalar else (_BINARY, _UNARY)
    for table in tables:
        if (op, column) in table:
            return table[op, column]
    return UNKNOWN


_AROUND = {"s32": (6, 5), "s64": (7, 5)}
"""Of popops's loop around an integer op, and around one with a number: an addition, one instruction
of 32 bits or four of 64, takes 7 or 6, and 11 or 9."""
_PACKED = 4
PACKING = {"f32": 7, "f16": 5, "s32": 9, "s64": 9}
"""Cycles in which popops's comparisons put what four say into a word: their loops without loads, an
instruction for each vector or integer, and a store."""


@lru_cache(maxsize=1024)
def rate_inside(op: str, element_type: str, loads: int, *, scalar: bool = False) -> Rate:
    """Return the rate of an op between others: of its own loop without what surrounds the op.

    `loads` of its operands are not numbers, of which one is where `scalar`. Comparisons leave masks
    (`PACKING`). Integer ops that are one instruction take one slot.
    """
    column = column_of(element_type)
    if op == "not" and column == "pred":
        op = "xor"  # of a mask and a number, as in other logic, not a loop over single bytes
    rate = rate_of(op, element_type, scalar=scalar)
    if not rate.complete:
        return rate
    around = max(1, loads) + 1
    if op.startswith("compare-") and column in PACKING:
        rate = rate_of(op, element_type)
        loaded = vector_elements(column) if column in ("f32", "f16") else 1
        around = 2 * _PACKED // loaded + PACKING[column] + 1
    elif column in _AROUND:
        around = _AROUND[column][scalar]
    return rate._replace(cycles=max(1, rate.cycles - around))


@lru_cache(maxsize=1024)
def vector_elements(element_type: str) -> int:
    """Return how many elements one 64-bit access moves; bytes go by four."""
    bits = ELEMENT_TYPES[element_type].bits
    return max(1, 64 // max(bits, 16))
