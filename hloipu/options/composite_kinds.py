"""Kinds of option values that have parts: lists, pairs, maps of devices, and axes of meshes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from hloipu.options.kinds import MOST_CHARACTERS, Integer, Kind, Location, moved
from hloipu_runtime.frozen import dataclass

MOST_PARTS = 65_536
"""As many parts as a value may have."""

_MOST_AXES = 64
"""Axes of a mesh, and dimensions of an array."""
_MARKS = frozenset("+,?=-{}\"'")
"""What no name of an axis has: specs are written with these."""
_AUTO = "auto"
_OPEN = "?"

_DEVICE = re.compile(r"[0-9]{1,6}|\[[0-9]{1,6}(?:,[0-9]{1,6})*\]", re.ASCII)


def _parts(value: object) -> Sequence[object] | None:
    """Return the parts of a list or tuple; None for anything else, a text included."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return value if len(value) <= MOST_PARTS else None
    return None


def _all_or_none(parts: Sequence[object]) -> tuple[object, ...] | None:
    return None if None in parts else tuple(parts)


@dataclass(frozen=True, slots=True)
class Integers(Kind):
    """Different integers of a range, in an order: `2,0,3`."""

    metavar_text: ClassVar[str] = "N,N,…"
    expected_text: ClassVar[str] = (
        "a list of different integers from {0.least} to {0.most}, such as 2,3"
    )

    least: int
    most: int

    def read(self, text: str) -> object:
        """Return the integers between commas."""
        if len(text) > MOST_CHARACTERS:
            return None
        integer = Integer(self.least, self.most)
        return self.check([integer.read(word.strip()) for word in text.split(",")])

    def check(self, value: object) -> object:
        """Return a list or tuple of integers as a tuple; one integer is a list of it."""
        integer = Integer(self.least, self.most)
        if (single := integer.check(value)) is not None:
            return (single,)
        numbers = _all_or_none([integer.check(part) for part in _parts(value) or ()])
        return numbers if numbers and len(frozenset(numbers)) == len(numbers) else None

    def write(self, value: object) -> str:
        """Return the integers between commas."""
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""


class DeviceMap(Kind):
    """The IPU of each stage; a stage of concurrent branches has a list: `0,[1,2],3`."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "N,[N,N],…"
    expected_text: ClassVar[str] = "a list with the IPU of each stage, such as 0,1,1,2 or 0,[1,2],3"

    def read(self, text: str) -> object:
        """Return the map that `text` writes."""
        bare = text.replace(" ", "") if len(text) <= MOST_CHARACTERS else ""
        devices: list[str] = _DEVICE.findall(bare)
        if ",".join(devices) != bare:
            return None
        numbers = [tuple(map(int, part.strip("[]").split(","))) for part in devices]
        both = zip(devices, numbers, strict=True)
        return self.check([ipus if part[0] == "[" else ipus[0] for part, ipus in both])

    def check(self, value: object) -> object:
        """Return a list of integers and of lists of integers as tuples; text as `read` does."""
        if isinstance(value, str):
            return self.read(value)
        integers, integer = Integers(0, 999_999), Integer(0, 999_999)
        parts = [
            integer.check(part) if _parts(part) is None else integers.check(part)
            for part in _parts(value) or ()
        ]
        return _all_or_none(parts) or None

    def write(self, value: object) -> str:
        """Return the map as `read` takes it."""
        if not isinstance(value, tuple):
            return ""
        return ",".join(
            f"[{','.join(map(str, part))}]" if isinstance(part, tuple) else str(part)
            for part in value
        )


class Names(Kind):
    """Names, each given by a use of the option of its own."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "NAME"
    expected_text: ClassVar[str] = "a list of different names"
    repeatable: ClassVar[bool] = True

    def read(self, text: str) -> object:
        """Return the one name."""
        return self.check([text])

    def check(self, value: object) -> object:
        """Return a list of names as a tuple."""
        items = _parts(value)
        if items is None:
            return None
        names = _all_or_none([Kind.check(self, part) for part in items])
        return names if names is not None and len(frozenset(names)) == len(names) else None

    def write(self, value: object) -> str:
        """Return the names between commas, to be looked at."""
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""


class Files(Names):
    """Paths of files, each given by a use of the option of its own."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "FILE"
    expected_text: ClassVar[str] = "a list of different paths"

    def check(self, value: object) -> object:
        """Return a list of paths as a tuple of texts."""
        items = _parts(value)
        location = Location()
        return (
            None if items is None else Names.check(self, [location.check(part) for part in items])
        )

    def names_file(self, value: object) -> bool:
        """Say that they do."""
        return True

    def rebased(self, value: object, folder: Path) -> object:
        """Return the paths, taken from `folder` where they are relative."""
        return tuple(moved(str(path), folder) for path in _parts(value) or ())


@dataclass(frozen=True, slots=True)
class Pairs(Kind):
    """`KEY=VALUE`, each given by a use of the option of its own; no key twice."""

    metavar_text: ClassVar[str] = "{0.key}={0.value.metavar}"
    expected_text: ClassVar[str] = (
        "{0.key}=VALUE, no {0.key} twice, where VALUE is {0.value.expected}"
    )
    repeatable: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    key: str
    value: Kind

    def read(self, text: str) -> object:
        """Return the one pair."""
        return self.check([text])

    def check(self, value: object) -> object:
        """Return a mapping, a list of `KEY=VALUE` or a list of pairs as a tuple of pairs."""
        pairs_given = tuple(value.items()) if isinstance(value, Mapping) else _parts(value)
        if pairs_given is None or len(pairs_given) > MOST_PARTS:
            return None
        pairs = [self._pair(part) for part in pairs_given]
        keys = {self.same_key(pair[0]) for pair in pairs if pair is not None}
        return tuple(pairs) if None not in pairs and len(keys) == len(pairs) else None

    def _pair(self, pair: object) -> tuple[str, object] | None:
        if isinstance(pair, str):
            key, mark, text = pair.partition("=")
            value = self.value.read(text.strip()) if mark else None
        elif isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str):
            key, value = pair[0], self.value.check(pair[1])
        else:
            return None
        if Kind.check(self, key) is None or value is None:
            return None
        return key.strip(), value

    def same_key(self, key: str) -> str:
        """Return what two keys that mean the same have in common."""
        return key

    def write(self, value: object) -> str:
        """Return the pairs between commas, to be looked at."""
        pairs = value if isinstance(value, tuple) else ()
        return ",".join(f"{key}={self.value.write(part)}" for key, part in pairs)


class FilesByName(Pairs):
    """`NAME=FILE`, each given by a use of the option of its own."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "{0.key}=FILE"

    def names_file(self, value: object) -> bool:
        """Say that they do."""
        return True

    def rebased(self, value: object, folder: Path) -> object:
        """Return the pairs with paths taken from `folder` where they are relative."""
        pairs = self.check(value)
        if not isinstance(pairs, tuple):
            return value
        return tuple((key, moved(path, folder)) for key, path in pairs)


class Number(Kind):
    """An integer as text: what it may be is for the machine to say."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "N"
    expected_text: ClassVar[str] = "an integer"

    def check(self, value: object) -> object:
        """Return an integer, or a text that writes one, as text."""
        integer = Integer(-(10**40), 10**40)
        number = integer.read(value.strip()) if isinstance(value, str) else integer.check(value)
        return None if number is None else str(number)


class Settings(Pairs):
    """Numbers of the machine to override; `chip.tiles_per_ipu` is also `tiles_per_ipu`."""

    __slots__ = ()

    def same_key(self, key: str) -> str:
        """Return the key without its section, which is optional."""
        return key.rpartition(".")[2]


def _axis(name: object) -> str | None:
    fits = isinstance(name, str) and name.isprintable() and not _MARKS.intersection(name)
    return name.strip() or None if fits and isinstance(name, str) else None


class MeshAxes(Kind):
    """Axes of a mesh of devices with their sizes, major to minor, or `auto`."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "AXIS=N,…|auto"
    expected_text: ClassVar[str] = "axes and their sizes, such as data=2,model=4, or auto"

    def read(self, text: str) -> object:
        """Return the axes between commas."""
        if text.strip() == _AUTO:
            return _AUTO
        if len(text) > MOST_CHARACTERS:
            return None
        pairs = [part.partition("=")[::2] for part in text.split(",")]
        return self.check([(name, Integer(1, 2**31).read(size.strip())) for name, size in pairs])

    def check(self, value: object) -> object:
        """Return a mapping, pairs or a text as a tuple of pairs, or `auto`."""
        if isinstance(value, str):
            return self.read(value)
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple) or not 0 < len(pairs) <= _MOST_AXES:
            return None
        axes = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                return None
            name, size = _axis(pair[0]), Integer(1, 2**31).check(pair[1])
            if name is None or size is None:
                return None
            axes.append((name, size))
        return tuple(axes) if len(dict(axes)) == len(axes) else None

    def write(self, value: object) -> str:
        """Return the axes as `read` takes them."""
        if not isinstance(value, tuple):
            return str(value)
        return ",".join(f"{name}={size}" for name, size in value)


class DimensionAxes(Kind):
    """The axes of each dimension of an array: `data,-,model+rest?`."""

    __slots__ = ()
    metavar_text: ClassVar[str] = "AXES,…"
    expected_text: ClassVar[str] = (
        "the axes of each dimension between commas, several with + and none as -; a last ? "
        "leaves more open: data,-,model"
    )

    def read(self, text: str) -> object:
        """Return the axes of each dimension; a text of nothing divides none."""
        if len(text) > MOST_CHARACTERS:
            return None
        parts = text.split(",") if text.strip() else []
        return self.check([_dimension(part.strip()) for part in parts])

    def check(self, value: object) -> object:
        """Return a JAX PartitionSpec, or a sequence of names, of None and of tuples, as a tuple."""
        if isinstance(value, str):
            return self.read(value)
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            return None
        axes_by_dimension: list[tuple[str, ...]] = []
        for part in islice(iter(value), _MOST_AXES + 1):
            axes = _axes(part)
            if axes is None:
                return None
            axes_by_dimension.append(axes)
        return tuple(axes_by_dimension) if len(axes_by_dimension) <= _MOST_AXES else None

    def write(self, value: object) -> str:
        """Return the axes as `read` takes them."""
        from hloipu_compiler.partition.spmd.parameter_rules import spec_text

        return spec_text(value) if isinstance(value, tuple) else ""


def _dimension(text: str) -> tuple[str, ...]:
    """Return the axes of one dimension, a `?` for more as the last."""
    is_open = text.endswith(_OPEN)
    bare = text.removesuffix(_OPEN)
    names = () if bare in ("", "-") else tuple(name.strip() for name in bare.split("+"))
    return names + (_OPEN,) * is_open


def _axes(part: object) -> tuple[str, ...] | None:
    if part is None:
        return ()
    if repr(part) == "UNCONSTRAINED":  # jax.sharding.PartitionSpec.UNCONSTRAINED
        return (_OPEN,)
    if isinstance(part, str):
        part = (part,)
    if not isinstance(part, list | tuple) or len(part) > _MOST_AXES:
        return None
    names = [name if name == _OPEN else _axis(name) for name in part]
    if None in names or _OPEN in names[:-1]:
        return None
    return tuple(str(name) for name in names)
