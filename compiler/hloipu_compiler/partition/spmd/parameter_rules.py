"""Rules that divide parameters and results by name: which holds for which array, if it fits.

A pattern is a parameter's number, or a name in which `*` and `?` stand for any characters. It is
compared with what users call the parameter (JAX's path, `params['w']['kernel']`, also written
`params/w/kernel`), with every argument that contains it (`params`), and with its name in the text.
Results are called `out_0`, `out_1` and so on, and only patterns that begin with `out_` match them.
The first rule that matches holds. Scalars are whole, whatever matches them.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from shlex import quote
from typing import Any

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.plan.entry_arrays import parameter_arrays, result_arrays
from hloipu_compiler.plan.wrapping import EntryArray
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.nearest import did_you_mean

Spec = tuple[tuple[str, ...], ...]
"""For each dimension its axes, major to minor; a last `?` leaves more open. Missing ones: whole."""
Rule = tuple[str, Spec]
MeshSizes = tuple[tuple[str, int], ...]
"""Names and sizes of axes, major to minor."""

OPEN = "?"
_OUT = "out_"
_BRACKET = re.compile(r"\[['\"]?([^'\"\[\]]*)['\"]?\]")


@dataclass(frozen=True, slots=True)
class Sharding:
    """A mesh, and the rules that divide arrays over its axes."""

    mesh: MeshSizes
    rules: tuple[Rule, ...]

    @property
    def devices(self) -> int:
        """IPUs that arrays are divided over."""
        return prod(size for _, size in self.mesh)

    def flags(self) -> str:
        """Return the command line's words for it."""
        mesh = ",".join(f"{name}={size}" for name, size in self.mesh)
        each = [f"--shard {quote(f'{pattern}={spec_text(spec)}')}" for pattern, spec in self.rules]
        return " ".join([f"--mesh {mesh}", *each])

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        shard = {pattern: spec_text(spec) for pattern, spec in self.rules}
        return {"mesh": dict(self.mesh), "shard": shard}


def spec_text(spec: Spec) -> str:
    """Return a spec as `--shard` takes it: `data,-,model+rest?`."""
    each = ("+".join(a for a in axes if a != OPEN) + OPEN * (OPEN in axes) for axes in spec)
    return ",".join(text or "-" for text in each)


def matched_arrays(
    module: Module, rules: Sequence[Rule], sizes: Mapping[str, int]
) -> dict[int, Rule]:
    """Return the rule that holds for each array of the entry, where one does.

    Arrays are the parameters', then the results'.
    `sizes`: of the mesh's axes. Raises UsageError E0487 for a rule that holds for nothing, E0488
    for one that has axes that the mesh has not, more dimensions than an array, or more blocks than
    a dimension has elements.
    """
    arrays = entry_arrays(module)
    names = names_of_arrays(module)
    rule_by_array: dict[int, Rule] = {}
    for rule in rules:
        pattern = rule[0]
        _check_axes(rule, sizes)
        each = matching(pattern, names)
        new = [number for number in each if number not in rule_by_array]
        if not new:
            raise _nothing(pattern, arrays, bool(each))
        for number in new:
            if arrays[number].shape:
                _check_fits(rule, arrays[number], sizes)
            rule_by_array[number] = rule if arrays[number].shape else (pattern, ())
    return rule_by_array


def entry_arrays(module: Module) -> list[EntryArray]:
    """Return the arrays of the entry's parameters, then those of its results."""
    parameters = parameter_arrays(module)
    results = [x._replace(name=f"{_OUT}{x.number}") for x in result_arrays(module)]
    return [*parameters, *(x._replace(number=len(parameters) + x.number) for x in results)]


def names_of_arrays(module: Module) -> list[list[str]]:
    """Return what each array of the entry may be called.

    A parameter as users call it, with slashes, the argument that it is part of, and its name in the
    text.
    """
    entry = module.entry
    owners = [
        entry.instructions[position].name
        for position in entry.parameters
        for leaf in leaves_of(entry.instructions[position].shape)
        if leaf.element_type.name != "token"
    ]
    names = []
    for n, x in enumerate(entry_arrays(module)):
        more = [_BRACKET.sub(r"/\1", x.name).replace("//", "/"), x.group, *owners[n : n + 1]]
        names.append([x.name, *more] if n < len(owners) else [x.name])
    return names


def matching(pattern: str, names: Sequence[Sequence[str]]) -> list[int]:
    """Return the numbers of the arrays that a pattern matches, of which `names` are all names."""
    if pattern.isdecimal() and int(pattern) < len(names):
        return [int(pattern)]
    parts = {"*": ".*", "?": "."}
    text = "".join(parts.get(c) or re.escape(c) for c in pattern)
    whole = re.compile(text + r"(?:[.\[/].*)?", re.DOTALL)
    of_results = pattern.startswith(_OUT)
    return [
        n
        for n, each in enumerate(names)
        if any(whole.fullmatch(name) for name in each)
        and (of_results or not each[0].startswith(_OUT))
    ]


def _nothing(pattern: str, arrays: Sequence[EntryArray], is_late: bool) -> UsageError:
    if is_late:
        return UsageError(
            "E0487",
            f"the shard rule {pattern!r} never holds: rules before it take all that it matches",
            hint="the first rule that matches a parameter holds; put narrow patterns first",
        )
    names = [x.name for x in arrays]
    return UsageError(
        "E0487",
        f"the shard rule {pattern!r} matches none of {len(arrays)} parameters and results",
        hint=did_you_mean(pattern, names, "`hloipu show` lists the parameters"),
    )


def _check_axes(rule: Rule, sizes: Mapping[str, int]) -> None:
    pattern, spec = rule
    axes = [axis for axes in spec for axis in axes if axis != OPEN]
    unknown = next((axis for axis in axes if axis not in sizes), None)
    if unknown is not None:
        raise UsageError(
            "E0488",
            f"the shard rule {pattern!r} names the axis {unknown!r}; the mesh has "
            f"{', '.join(sizes) or 'none'}",
            hint=did_you_mean(unknown, sizes, f"add it: --mesh {unknown}=N"),
        )
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise UsageError(
            "E0488",
            f"the shard rule {pattern!r} uses the axis {twice!r} twice",
            hint="an axis divides one dimension of an array",
        )


def _check_fits(rule: Rule, array: EntryArray, sizes: Mapping[str, int]) -> None:
    pattern, spec = rule
    if len(spec) > len(array.shape):
        raise UsageError(
            "E0488",
            f"the shard rule {pattern!r} has {len(spec)} dimensions; {array} has "
            f"{len(array.shape)}",
            hint="say one entry for each dimension at most: axes, or - for none",
        )
    for d, (axes, size) in enumerate(zip(spec, array.shape, strict=False)):
        blocks = prod(sizes[axis] for axis in axes if axis != OPEN)
        if blocks > max(1, size):
            raise UsageError(
                "E0488",
                f"the shard rule {pattern!r} cuts dimension {d} of {array} into {blocks} blocks, "
                f"and it has {size} elements",
                hint="take smaller axes, or another dimension",
            )
