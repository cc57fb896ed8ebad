"""The table of element types: widths, kinds and the format of each small float.

Formats: OCP 8-bit floating point and microscaling specifications; IEEE 754; the `fnuz` types as in
arXiv 2206.02915. Plain Python on purpose: reading text must not pay for importing numpy.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Literal

from hloipu_runtime.frozen import dataclass


class Kind(Enum):
    """What an element is, as far as rules about types go."""

    PREDICATE = "predicate"
    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    FLOAT = "float"
    COMPLEX = "complex"
    TOKEN = "token"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type; `bits` is the width in HLO's packed sense (`pred` takes a byte)."""

    name: str
    kind: Kind
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    """Explicit mantissa bits, without the hidden one."""
    storage: str = ""
    """Name of the numpy dtype in which kernels hold values (`kernels/core/storage.py`)."""

    @property
    def is_integer(self) -> bool:
        """Whether the type is a signed or unsigned integer (`pred` is neither)."""
        return self.kind is Kind.SIGNED or self.kind is Kind.UNSIGNED

    @property
    def is_float(self) -> bool:
        """Whether the type is a real floating-point format."""
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        """Whether the type is c64 or c128."""
        return self.kind is Kind.COMPLEX

    @property
    def is_array(self) -> bool:
        """Whether arrays of this type hold numbers (everything but token and opaque)."""
        return self.kind not in (Kind.TOKEN, Kind.OPAQUE)

    @property
    def byte_width(self) -> int:
        """Whole bytes of one unpacked element."""
        return (self.bits + 7) // 8


def _integers() -> list[ElementType]:
    types = []
    for bits in (1, 2, 4, 8, 16, 32, 64):
        types.append(ElementType(f"s{bits}", Kind.SIGNED, bits, storage=f"int{max(bits, 8)}"))
        types.append(ElementType(f"u{bits}", Kind.UNSIGNED, bits, storage=f"uint{max(bits, 8)}"))
    return types


def _floats() -> list[ElementType]:
    rows = (
        ("f16", 16, 5, 10), ("bf16", 16, 8, 7), ("f32", 32, 8, 23), ("f64", 64, 11, 52),
        ("f8e5m2", 8, 5, 2), ("f8e4m3", 8, 4, 3), ("f8e4m3fn", 8, 4, 3),
        ("f8e4m3b11fnuz", 8, 4, 3), ("f8e3m4", 8, 3, 4), ("f8e5m2fnuz", 8, 5, 2),
        ("f8e4m3fnuz", 8, 4, 3), ("f8e8m0fnu", 8, 8, 0), ("f4e2m1fn", 4, 2, 1),
        ("f6e2m3fn", 6, 2, 3), ("f6e3m2fn", 6, 3, 2),
    )  # fmt: skip
    return [
        ElementType(
            name, Kind.FLOAT, bits, exponent, mantissa, "float64" if bits == 64 else "float32"
        )
        for name, bits, exponent, mantissa in rows
    ]


ELEMENT_TYPES: dict[str, ElementType] = {
    t.name: t
    for t in (
        ElementType("pred", Kind.PREDICATE, 8, storage="bool"),
        *_integers(),
        *_floats(),
        ElementType("c64", Kind.COMPLEX, 64, storage="complex64"),
        ElementType("c128", Kind.COMPLEX, 128, storage="complex128"),
        ElementType("token", Kind.TOKEN, 0),
        ElementType("opaque", Kind.OPAQUE, 0),
    )
}

PRED = ELEMENT_TYPES["pred"]
S32 = ELEMENT_TYPES["s32"]
U32 = ELEMENT_TYPES["u32"]
U64 = ELEMENT_TYPES["u64"]
F32 = ELEMENT_TYPES["f32"]
F64 = ELEMENT_TYPES["f64"]
C64 = ELEMENT_TYPES["c64"]
C128 = ELEMENT_TYPES["c128"]
TOKEN = ELEMENT_TYPES["token"]
OPAQUE = ELEMENT_TYPES["opaque"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a narrow float can hold, and what happens beyond the largest."""

    mantissa_bits: int
    min_exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    overflow: Literal["infinity", "nan", "saturate"]
    negative_zero: bool = True
    nan: bool = True
    """Without it a NaN becomes -0, as XLA converts it."""


GRIDS: dict[str, Grid] = {
    "f16": Grid(10, -14, 65504.0, "infinity"),
    "bf16": Grid(7, -126, 2.0**128 - 2.0**120, "infinity"),
    "f8e5m2": Grid(2, -14, 57344.0, "infinity"),
    "f8e4m3": Grid(3, -6, 240.0, "infinity"),
    "f8e3m4": Grid(4, -2, 15.5, "infinity"),
    "f8e4m3fn": Grid(3, -6, 448.0, "nan"),
    "f8e4m3b11fnuz": Grid(3, -10, 30.0, "nan", negative_zero=False),
    "f8e5m2fnuz": Grid(2, -15, 57344.0, "nan", negative_zero=False),
    "f8e4m3fnuz": Grid(3, -7, 240.0, "nan", negative_zero=False),
    "f4e2m1fn": Grid(1, 0, 6.0, "saturate", nan=False),
    "f6e2m3fn": Grid(3, 0, 7.5, "saturate", nan=False),
    "f6e3m2fn": Grid(2, -2, 28.0, "saturate", nan=False),
}
"""Every narrow float but f8e8m0fnu, whose values are powers of two alone."""


def shape_text(element_type: str, shape: Sequence[object]) -> str:
    """Return a type and sizes as HLO writes them."""
    return f"{element_type}[{','.join(map(str, shape))}]"
