"""The text of a kernel's body in LLVM's intermediate language: types, numbers and lines."""

import struct

_REGISTERS = {
    "f32": "float", "f64": "double", "pred": "i1", "c64": "i64",
    **{f"{sign}{bits}": f"i{bits}" for sign in "su" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_MEMORY = {**_REGISTERS, "pred": "i8"}


def register_type(element: str) -> str:
    """Return LLVM's type of a value of a storage type."""
    return _REGISTERS[element]


def memory_type(element: str) -> str:
    """Return LLVM's type of a value of a storage type in an array."""
    return _MEMORY[element]


def is_known_type(element: str) -> bool:
    """Whether values of a storage type can be computed with."""
    return element in _REGISTERS


class Text:
    """The lines of a kernel's body so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.intrinsics: dict[str, str] = {}
        """Declarations by name."""
        self.halves: set[str] = set()
        """Values that were extended from f16."""
        self._count = 0

    def new(self, expression: str) -> str:
        """Add a line that makes a value, and return the value's name."""
        name = f"%t{self._count}"
        self._count += 1
        self.lines.append(f"  {name} = {expression}")
        return name

    def call(self, intrinsic: str, kind: str, *arguments: tuple[str, str]) -> str:
        """Add a call of one of LLVM's own functions; arguments are types and values."""
        given = ", ".join(f"{t} {v}" for t, v in arguments)
        types = ", ".join(t for t, _ in arguments)
        self.intrinsics[intrinsic] = f"declare {kind} @{intrinsic}({types})"
        return self.new(f"call {kind} @{intrinsic}({given})")


def number(value: float) -> str:
    """Return a float as LLVM reads it: the bits of the f64 that it is."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
