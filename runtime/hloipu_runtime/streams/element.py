"""Element specification of a queue: type, shape and nesting of its leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.arguments import ArgumentError, Number, checked_record, shown
from hloipu_runtime.element_types import ELEMENT_TYPES, shape_text
from hloipu_runtime.errors import StreamError
from hloipu_runtime.kernels.core.storage import from_storage, storage_dtype, to_storage, user_dtype
from hloipu_runtime.plain_text import printable
from hloipu_runtime.streams.binding import partly_bound
from hloipu_runtime.streams.structure import LEAF, Structure, flatten, rebuild

Array = np.ndarray[Any, Any]
Leaves = tuple[Array, ...]


@checked_record
@dataclass(frozen=True, slots=True)
class LeafSpec:
    """Type and shape of one array."""

    element_type: str
    shape: tuple[Number, ...]

    def __post_init__(self) -> None:
        if self.element_type not in ELEMENT_TYPES:
            names = f"one of {', '.join(ELEMENT_TYPES)}"
            raise ArgumentError("LeafSpec", "element_type", names, shown(self.element_type))

    def __str__(self) -> str:
        return shape_text(self.element_type, self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes that cross the line to the device."""
        return (prod(self.shape) * ELEMENT_TYPES[self.element_type].bits + 7) // 8


@checked_record
@dataclass(frozen=True, slots=True)
class ElementSpec:
    """Leaves of every element of one queue, in order; no structure: any nesting will do."""

    leaves: tuple[LeafSpec, ...]
    structure: Structure | None = None
    names: tuple[str, ...] = ()
    """Of leaves, by which dictionaries are bound; empty: in the order of their sorted keys."""

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.leaves)) + ")"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element as they cross the line to the device."""
        return sum(leaf.size_bytes for leaf in self.leaves)

    def to_user(self, leaves: Leaves) -> Any:
        """Return leaves in storage form as the nested arrays that users see."""
        arrays = [
            from_storage(array, spec.element_type)
            for array, spec in zip(leaves, self.leaves, strict=True)
        ]
        if self.structure is not None:
            return rebuild(self.structure, arrays)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


def spec_of(element: Any) -> ElementSpec:
    """Return the specification that an example element has; StreamError E2023 for other data."""
    leaves, structure = flatten(element)
    specs = []
    for leaf in leaves:
        array = np.asarray(leaf)
        element_type = _types().get(array.dtype)
        if element_type is None:
            raise StreamError(
                "E2023",
                f"an array of type {array.dtype} cannot go through a stream",
                expected="numbers",
                found=str(array.dtype),
                hint=f"types: {', '.join(sorted(map(str, _types())))}",
            )
        specs.append(LeafSpec(element_type, array.shape))
    return ElementSpec(tuple(specs), structure)


@cache
def _types() -> dict[np.dtype[Any], str]:
    return {user_dtype(name): name for name, each in ELEMENT_TYPES.items() if each.is_array}


class Intake:
    """Checks the elements of one queue and brings them to storage form; sees every element."""

    def __init__(self, spec: ElementSpec, queue: str) -> None:
        self.spec = spec
        self.queue = queue
        self._users = tuple((leaf.shape, user_dtype(leaf.element_type)) for leaf in spec.leaves)
        self._stored = tuple((leaf.shape, storage_dtype(leaf.element_type)) for leaf in spec.leaves)
        self._orders: dict[Structure, tuple[int, ...]] = {}
        plain = Structure("tuple", (), (LEAF,) * len(spec.leaves))
        self._plain_tuple = spec.structure is None or spec.structure == plain
        # Types narrower than a byte wrap and narrow floats round, so equal dtypes do not suffice.
        self._as_is = tuple(
            user == stored and ELEMENT_TYPES[leaf.element_type].bits >= 8
            for (_, user), (_, stored), leaf in zip(
                self._users, self._stored, spec.leaves, strict=True
            )
        )

    def to_storage(self, element: Any, step: int) -> Leaves:
        """Return an element's leaves in storage form, as views where types agree.

        Raises StreamError E2023 unless nesting, types and shapes are those of the queue.
        """
        spec = self.spec
        leaves: Sequence[Any]
        if isinstance(element, np.ndarray) and (spec.structure is None or spec.structure == LEAF):
            leaves = (element,)
        elif self._plain_tuple and type(element) is tuple and _all_arrays(element):
            leaves = element
        else:
            leaves, structure = flatten(element)
            if spec.structure is not None and structure != spec.structure:
                raise _mismatch(self.queue, step, f"nested as {spec.structure}", f"{structure}")
            leaves = self._in_order(leaves, structure, step)
        if len(leaves) != len(spec.leaves):
            raise self._wrong_count(leaves, step)
        return tuple(
            [self._leaf_to_storage(number, leaf, step) for number, leaf in enumerate(leaves)]
        )

    def check_storage(self, leaves: Leaves, step: int) -> None:
        """Raise StreamError E2023 unless arrays in storage form have these shapes and types."""
        if len(leaves) != len(self._stored):
            raise _mismatch(self.queue, step, f"{len(self._stored)} arrays", f"{len(leaves)}")
        for number, (array, (shape, dtype)) in enumerate(zip(leaves, self._stored, strict=True)):
            if array.shape != shape or array.dtype != dtype:
                wanted = f"{self.spec.leaves[number]} in leaf {number}, as {dtype}"
                raise _mismatch(self.queue, step, wanted, _form(array))

    def _in_order(self, leaves: list[Any], structure: Structure, step: int) -> list[Any]:
        """Return the leaves of a dictionary in the order of the queue's.

        By name where every name is that of one leaf; else by type and shape, where these tell and
        no name says otherwise. The order is that of the first element of its kind. Raises
        StreamError E2023 where neither does.
        """
        spec = self.spec
        if not spec.names or len(spec.names) == 1 or not structure.is_named:
            return leaves
        order = self._orders.get(structure)
        if order is None:
            if len(leaves) == len(spec.names):
                by_name = partly_bound(structure.paths(), spec.names)
                order = _ordered(by_name, leaves, self._users)
            if order is None:
                raise _mismatch(
                    self.queue,
                    step,
                    f"arrays named {', '.join(map(printable, spec.names))}",
                    str(structure),
                    hint="name them as the parameters are named, or give a tuple in that order",
                )
            self._orders[structure] = order
        return [leaves[number] for number in order]

    def _wrong_count(self, leaves: Sequence[Any], step: int) -> StreamError:
        names = f": {', '.join(map(printable, self.spec.names))}" if self.spec.names else ""
        expected = f"{len(self.spec.leaves)} arrays{names}"
        return _mismatch(self.queue, step, expected, f"{len(leaves)}")

    def _leaf_to_storage(self, number: int, leaf: Any, step: int) -> Array:
        array = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
        shape, wanted = self._users[number]
        if array.shape == shape and array.dtype == wanted and self._as_is[number]:
            return array
        spec = self.spec.leaves[number]
        if array.shape != shape:
            expected = f"{spec} in leaf {number}"
            raise _mismatch(self.queue, step, expected, _form(array), hint=_SHAPE_HINT)
        if array.dtype.type is np.void and array.dtype.itemsize == wanted.itemsize:
            array = array.view(wanted)  # numpy's files keep no more of the types it does not know
        if array.dtype != wanted:
            plain = isinstance(leaf, bool | int | float | complex)
            if not (plain and np.can_cast(array.dtype, wanted, "same_kind")):
                hint = f"convert in the source: .astype({wanted.name!r})"
                expected = f"{spec} in leaf {number}"
                raise _mismatch(self.queue, step, expected, _form(array), hint=hint)
            array = array.astype(wanted)
        return to_storage(array, spec.element_type)


def _ordered(
    by_name: Mapping[int, int],
    leaves: Sequence[Any],
    wanted: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
) -> tuple[int, ...] | None:
    """Return which leaf is each that is wanted: by name if all are, or the one of its kind."""
    if len(by_name) == len(wanted):
        return tuple(by_name[number] for number in range(len(wanted)))
    arrays = [np.asarray(leaf) for leaf in leaves]
    kinds = [(array.shape, array.dtype) for array in arrays]
    if len(frozenset(wanted)) != len(wanted) or frozenset(kinds) != frozenset(wanted):
        return None
    by_kind = tuple(kinds.index(kind) for kind in wanted)
    return by_kind if all(by_kind[n] == path for n, path in by_name.items()) else None


def _all_arrays(parts: tuple[Any, ...]) -> bool:
    return all(isinstance(part, np.ndarray) for part in parts)


def _form(array: Array) -> str:
    return shape_text(str(array.dtype), array.shape)


_SHAPE_HINT = "shapes are fixed when a program is compiled; a short last batch is dropped or padded"


def _mismatch(queue: str, step: int, expected: str, found: str, *, hint: str = "") -> StreamError:
    return StreamError(
        "E2023",
        f"stream {queue!r}: element {step} is not what the program takes: "
        f"expected {expected}, found {found}",
        queue=queue,
        step=step,
        expected=expected,
        found=found,
        hint=hint,
    )
