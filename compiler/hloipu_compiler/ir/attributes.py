"""Attributes of instructions and modules: one immutable mapping, and a record per structured value.

Every value is immutable and hashable, so that equal attribute lists can share one object and a
memo can be keyed by it. What a key's value looks like is said once, in `ir/attribute_kinds.py`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hloipu_compiler.ir.shapes import Shape
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.windows_geometry import WindowDimension


class Raw(str):
    """Text of a value kept verbatim, quotes or braces included; parsed on demand."""

    __slots__ = ()


class SliceRange(NamedTuple):
    """One dimension of `slice={[start:limit:stride]}`."""

    start: int
    limit: int
    stride: int = 1


class PaddingDimension(NamedTuple):
    """One dimension of `padding=low_high_interior`."""

    low: int
    high: int
    interior: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution, reduce-window or select-and-scatter."""

    dimensions: tuple[WindowDimension, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvolutionLabels:
    """`dim_labels=lhs_rhs->out` as written, e.g. `b01f`, `01io`, `b01f`."""

    lhs: str
    rhs: str
    out: str


@dataclass(frozen=True, slots=True)
class ReplicaGroups:
    """Groups of participants; `text` keeps the iota or mesh form, `groups` is always the full list.

    An empty `groups` means one group of all participants.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    text: str = ""
    """As written when it was an iota or mesh form, else empty."""

    @property
    def group_size(self) -> int:
        """Members of the first group; 0 where no groups are written."""
        return len(self.groups[0]) if self.groups else 0

    @property
    def participant_count(self) -> int:
        """Members of all groups together."""
        return sum(map(len, self.groups))


class Alias(NamedTuple):
    """One entry of `input_output_alias` or `output_to_operand_aliasing`."""

    output_index: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    kind: str = "may-alias"


class Donor(NamedTuple):
    """One entry of `buffer_donor`."""

    parameter: int
    parameter_index: tuple[int, ...]


class ProgramShape(NamedTuple):
    """Parameter shapes and result shape of a computation."""

    parameters: tuple[Shape, ...]
    result: Shape


Value = (
    bool
    | int
    | float
    | str
    | Raw
    | Window
    | ConvolutionLabels
    | ReplicaGroups
    | ProgramShape
    | Shape
    | tuple[int, ...]
    | tuple[bool, ...]
    | tuple[str, ...]
    | tuple[tuple[int, ...], ...]
    | tuple[SliceRange, ...]
    | tuple[PaddingDimension, ...]
    | tuple[Alias, ...]
    | tuple[Donor, ...]
    | tuple[Shape, ...]
)


class Attributes(Mapping[str, Value]):
    """An immutable, hashable mapping from attribute name to value, in the order of the text."""

    __slots__ = ("_hash", "_values", "called")

    called: tuple[str, ...]
    """Names of the computations that the attributes refer to, in order of appearance."""

    def __init__(self, values: Mapping[str, Value], called: tuple[str, ...] = ()) -> None:
        self._values = dict(values)
        self.called = called
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._values.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Attributes) and self._values == other._values)

    def __repr__(self) -> str:
        return f"Attributes({self._values!r})"

    def replaced(self, **changes: Value) -> "Attributes":
        """Return a copy with some values changed or added; `_` in a keyword stands for itself."""
        return Attributes({**self._values, **changes}, self.called)

    # Typed reads. A wrong type cannot happen after parsing: the kind of each key is checked there.
    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer attribute, or `default` where it is absent."""
        value = self._values.get(key, default)
        return value if isinstance(value, int) else default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean attribute, or `default` where it is absent."""
        value = self._values.get(key, default)
        return value if isinstance(value, bool) else default

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a floating-point attribute, or `default` where it is absent."""
        value = self._values.get(key, default)
        return float(value) if isinstance(value, int | float) else default

    def text(self, key: str, default: str = "") -> str:
        """Return an identifier, string or computation name, or `default` where it is absent."""
        value = self._values.get(key, default)
        return value if isinstance(value, str) else default

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of integers, empty where it is absent."""
        value = self._values.get(key, ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of integers, such as `source_target_pairs`; empty if absent."""
        value = self._values.get(key, ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def slice_ranges(self) -> tuple[SliceRange, ...]:
        """Return the ranges of a slice, one for each dimension."""
        value = self._values.get("slice", ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def padding(self) -> tuple[PaddingDimension, ...]:
        """Return what a pad puts around and between, for each dimension."""
        value = self._values.get("padding", ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def aliases(self) -> tuple[Alias, ...]:
        """Return what a module's header says of results in the buffers of parameters."""
        value = self._values.get("input_output_alias", ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def donors(self) -> tuple[Donor, ...]:
        """Return what a module's header says of parameters that are given away."""
        value = self._values.get("buffer_donor", ())
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def window(self) -> Window:
        """Return the window, without spatial dimensions where none is written."""
        value = self._values.get("window")
        return value if isinstance(value, Window) else Window()

    def replica_groups(self) -> ReplicaGroups:
        """Return the replica groups; none written means all participants in one."""
        value = self._values.get("replica_groups")
        return value if isinstance(value, ReplicaGroups) else ReplicaGroups()


NO_ATTRIBUTES = Attributes({})
