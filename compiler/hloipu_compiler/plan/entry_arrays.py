"""The entry's parameters and results as flat lists of named arrays."""

import re
from collections import Counter

from hloipu_compiler.hlo.attributes.metadata import read_metadata
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, leaves
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.plan.aliased_state import AliasPair
from hloipu_compiler.plan.wrapping import EntryArray

_GROUP = re.compile(r"(?:args|kwargs)\[[^\]]*\]|[A-Za-z_]\w*|\d+(?=\.\w)")
_WRITTEN_PATH = re.compile(r"([A-Za-z]\w*?)(?:__\w+__|_\d+_(?:_\w+)?)(?:\.\d+)?")
"""`p['w']['b']` as JAX writes it into a parameter's name, `p__w____b__.3`; `o[1].n`: `o_1__n`."""
Index = tuple[int, ...]


def parameter_arrays(module: Module) -> list[EntryArray]:
    """Return the arrays of the entry's parameters; names are unique.

    JAX writes the path of an argument's leaf into its parameter's `op_name`: `state.params['w']`;
    of modules in a row PyTorch makes `4.weight`. Where the dump has no metadata, the parameter's
    name still has it, without brackets.
    """
    return list(ARRAYS_MEMO.of(Same(module), lambda: _arrays_of(module)))


ARRAYS_MEMO: Memo[list[EntryArray]] = Memo(1)
"""The last answer, which is asked for from many sides."""


def _arrays_of(module: Module) -> list[EntryArray]:
    arrays: list[EntryArray] = []
    entry = module.entry
    paths = Counter(_path_of(entry.instructions[position])[0] for position in entry.parameters)
    for position in entry.parameters:
        instruction = entry.instructions[position]
        path, group = _path_of(instruction)
        if paths[path] > 1:
            path, group = instruction.name, ""
        indexed = _leaves(instruction.shape)
        for index, shape in indexed:
            name = path if len(indexed) == 1 else f"{path}{''.join(f'[{i}]' for i in index)}"
            arrays.append(_array(len(arrays), shape, name, group))
    counts = Counter(array.name for array in arrays)
    if not any(array.group for array in arrays):
        arrays = _grouped_by_name(arrays)
    return [
        array if counts[array.name] == 1 else array._replace(name=f"{array.name}#{array.number}")
        for array in arrays
    ]


def _grouped_by_name(arrays: list[EntryArray]) -> list[EntryArray]:
    """Return arrays with the arguments that their names tell of, if one of them has several."""
    paths = [_WRITTEN_PATH.fullmatch(array.name) for array in arrays]
    groups = [path[1] if path else array.name for path, array in zip(paths, arrays, strict=True)]
    if max(Counter(groups).values(), default=0) < 2:
        return arrays
    return [array._replace(group=group) for array, group in zip(arrays, groups, strict=True)]


def result_arrays(module: Module) -> list[EntryArray]:
    """Return the arrays of the result; tokens count, as a result of no shape that matches."""
    entry = module.entry
    results = all_leaves(entry.instructions[entry.root].shape)
    return [_array(number, shape) for number, (_, shape) in enumerate(results)]


def parameter_places(module: Module) -> list[Index]:
    """Return where each array of the parameters is: the parameter's number, and its elements'."""
    entry = module.entry
    shapes = [entry.instructions[position].shape for position in entry.parameters]
    return [(n, *index) for n, shape in enumerate(shapes) for index, _ in _leaves(shape)]


def result_places(module: Module) -> list[Index]:
    """Return the index of each array of the result."""
    return [index for index, _ in all_leaves(module.entry.instructions[module.entry.root].shape)]


def aliased(module: Module) -> list[AliasPair]:
    """Return what the header aliases and is of one shape, by number of the parameter."""
    entry = module.entry
    parameters: dict[tuple[int, Index], int] = {}
    for parameter, position in enumerate(entry.parameters):
        for index, _ in _leaves(entry.instructions[position].shape):
            parameters[parameter, index] = len(parameters)
    result_leaves = all_leaves(entry.instructions[entry.root].shape)
    results = {index: number for number, (index, _) in enumerate(result_leaves)}
    old, new = parameter_arrays(module), result_arrays(module)
    pairs: dict[int, AliasPair] = {}
    for alias in module.attributes.aliases():
        parameter = parameters.get((alias.parameter, alias.parameter_index), -1)
        result = results.get(alias.output_index, -1)
        if min(parameter, result) >= 0 and old[parameter].kind == new[result].kind:
            pair = AliasPair(parameter, result, alias.kind == "must-alias")
            pairs.setdefault(parameter, pair)
    return sorted(pairs.values())


def donated_alone(module: Module) -> frozenset[int]:
    """Return the parameters that the header gives away without saying to which result."""
    places = {place: n for n, place in enumerate(parameter_places(module))}
    numbers = [places.get((x.parameter, *x.parameter_index)) for x in module.attributes.donors()]
    return frozenset(n for n in numbers if n is not None)


def all_leaves(shape: Shape) -> list[tuple[Index, ArrayShape]]:
    """Return the arrays and tokens of a shape with their indices, tuples walked in order."""
    return [
        (index, leaf if isinstance(leaf, ArrayShape) else leaf.contents)
        for index, leaf in leaves(shape)
    ]


def _leaves(shape: Shape) -> list[tuple[Index, ArrayShape]]:
    return [leaf for leaf in all_leaves(shape) if leaf[1].element_type.name != "token"]


def _array(number: int, shape: ArrayShape, name: str = "", group: str = "") -> EntryArray:
    return EntryArray(number, shape.element_type.name, shape.dimensions, name, group)


def _path_of(instruction: Instruction) -> tuple[str, str]:
    """Return an argument's path and its first part, or the parameter's name and nothing."""
    path = read_metadata(instruction.metadata).op_name.replace("\\'", "'")
    match = _GROUP.match(path)
    return (path, match[0]) if match else (instruction.name, "")
