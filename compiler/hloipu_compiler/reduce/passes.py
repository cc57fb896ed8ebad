"""The edits that reduction tries: each lists its items in a module and applies some of them.

A pass never minds whether a candidate is valid or still interesting; `reducer` asks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.analysis.call_graph import call_sites
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_compiler.reduce.cleaning import without_parameters
from hloipu_compiler.reduce.inlining import inlinable, inlined
from hloipu_compiler.reduce.loop_state import narrowed_loop, state_elements
from hloipu_compiler.reduce.rewriting import (
    Draft,
    Key,
    NotReducibleError,
    calling,
    with_computation,
    without,
    without_interface,
)
from hloipu_compiler.reduce.shrinking import resized, sizes_to_shrink

Apply = Callable[[Module, Sequence[Key]], Module]
SIMPLEST = frozenset({"parameter", "constant", "after-all"})


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of edit."""

    name: str
    items: Callable[[Module], list[Key]]
    apply: Apply
    chunked: bool = True
    """Whether many items are tried at once before one by one."""


def instructions_of(
    module: Module, wanted: Callable[[Computation, int, Instruction], bool]
) -> list[Key]:
    """Return keys of instructions, callers' last ones first: what depends on most comes first."""
    computations = sorted(module.computations, key=lambda c: c.name != module.entry.name)
    return [
        Key(c.name, c.instructions[i].name)
        for c in computations
        for i in range(len(c.instructions) - 1, -1, -1)
        if wanted(c, i, c.instructions[i])
    ]


def by_computation(keys: Sequence[Key]) -> dict[str, dict[str, Key]]:
    """Return keys by computation and instruction."""
    found: dict[str, dict[str, Key]] = {}
    for key in keys:
        found.setdefault(key.computation, {})[key.instruction] = key
    return found


def one_by_one(apply: Callable[[Module, Key], Module]) -> Apply:
    """Return the application of an edit to several items, each once the ones before are done."""

    def run(module: Module, keys: Sequence[Key]) -> Module:
        for key in keys:
            computation = module.computation.get(key.computation)
            if computation is not None and key.instruction in computation.position:
                module = apply(module, key)
        return module

    return run


# ---- the entry's results and parameters -------------------------------------------------------
def outputs(module: Module) -> list[Key]:
    """List the elements of the entry's root tuple."""
    root = module.entry.instructions[module.entry.root]
    if root.opcode != "tuple" or len(root.operands) < 2:
        return []
    return [Key(module.entry.name, root.name, i) for i in range(len(root.operands))]


def drop_outputs(module: Module, keys: Sequence[Key]) -> Module:
    """Leave elements out of the entry's root tuple."""
    entry, dropped = module.entry, {k.choice for k in keys}
    draft = Draft(entry)
    for i, x in enumerate(entry.instructions):
        if i == entry.root and isinstance(x.shape, TupleShape):
            kept = [n for n in range(len(x.operands)) if n not in dropped]
            shape = TupleShape(tuple(x.shape.elements[n] for n in kept))
            operands = tuple(draft.place[x.operands[n]] for n in kept)
            draft.copy(i, operands=operands, shape=shape, attributes=Attributes({}))
        else:
            draft.copy(i)
    return without_interface(with_computation(module, draft.finish()))


def earlier_roots(module: Module) -> list[Key]:
    """List the operands of the entry's root, as roots to be."""
    entry = module.entry
    root = entry.instructions[entry.root]
    return [Key(entry.name, entry.instructions[i].name) for i in dict.fromkeys(root.operands)]


def move_root(module: Module, keys: Sequence[Key]) -> Module:
    """Make an instruction the entry's root."""
    root = module.entry.position[keys[0].instruction]
    return without_interface(with_computation(module, replace(module.entry, root=root)))


def unused_parameters(module: Module) -> list[Key]:
    """List the entry's parameters that nothing uses."""
    entry = module.entry
    return [
        Key(entry.name, entry.instructions[i].name)
        for i in entry.parameters
        if not entry.users[i] and i != entry.root
    ]


def drop_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Leave unused parameters of the entry out."""
    names = {k.instruction for k in keys}
    entry = module.entry
    numbers = {n for n, i in enumerate(entry.parameters) if entry.instructions[i].name in names}
    return without_interface(with_computation(module, without_parameters(entry, numbers)))


# ---- dead code, where a candidate is not cleaned as a whole -----------------------------------
def dead_instructions(module: Module) -> list[Key]:
    """List instructions that nothing uses."""
    return instructions_of(
        module, lambda c, i, x: not c.users[i] and i != c.root and x.parameter_number < 0
    )


def drop_instructions(module: Module, keys: Sequence[Key]) -> Module:
    """Leave instructions out that nothing uses."""
    for name, wanted in by_computation(keys).items():
        draft = Draft(module.computation[name])
        for i, x in enumerate(draft.old.instructions):
            if x.name not in wanted:
                draft.copy(i)
        module = with_computation(module, draft.finish())
    return module


def uncalled_computations(module: Module) -> list[Key]:
    """List computations that nothing calls."""
    sites = call_sites(module)
    return [Key(c.name, "") for c in module.computations if not sites[c.name] and c != module.entry]


def drop_computations(module: Module, keys: Sequence[Key]) -> Module:
    """Leave computations out that nothing calls."""
    names = {k.computation for k in keys}
    kept = tuple(c for c in module.computations if c.name not in names)
    position = [c.name for c in kept].index(module.entry.name)
    return replace(module, computations=kept, entry_position=position)


# ---- simpler values ---------------------------------------------------------------------------
def is_zero(computation: Computation, x: Instruction) -> bool:
    """Whether an instruction is already what `zeros` makes."""
    if x.opcode in SIMPLEST:
        return True
    below = [computation.instructions[i] for i in x.operands]
    return x.opcode in ("broadcast", "tuple") and all(is_scalar_zero(y) for y in below)


def is_plain_array(shape: Shape) -> bool:
    """Whether a shape is an array of numbers."""
    return isinstance(shape, ArrayShape) and shape.element_type.is_array


def is_scalar_zero(x: Instruction) -> bool:
    """Whether an instruction makes or repeats a constant."""
    return x.opcode == "constant"


def entry_arrays(module: Module) -> list[Key]:
    """List the entry's arrays that are neither parameters nor as simple."""
    keys = instructions_of(module, lambda c, i, x: not is_zero(c, x) and is_plain_array(x.shape))
    return [k for k in keys if k.computation == module.entry.name]


def to_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions of the entry by parameters."""
    entry, names = module.entry, {k.instruction for k in keys}
    draft, number = Draft(entry), len(entry.parameters)
    for i, x in enumerate(entry.instructions):
        if x.name in names:
            draft.place[i] = draft.add("arg", "parameter", x.shape, parameter_number=number)
            number += 1
        else:
            draft.copy(i)
    return without_interface(with_computation(module, draft.finish()))


def to_zeros(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions by zeros."""
    for name, wanted in by_computation(keys).items():
        draft = Draft(module.computation[name])
        for i, x in enumerate(draft.old.instructions):
            if x.name in wanted:
                draft.place[i] = draft.zero(x.shape)
            else:
                draft.copy(i)
        module = with_computation(module, draft.finish())
    return module


def operand_choices(module: Module) -> list[Key]:
    """List operands that have the shape of their user."""
    keys = []
    for computation in module.computations:
        for x in reversed(computation.instructions):
            shapes = [computation.instructions[i].shape for i in x.operands]
            keys += [
                Key(computation.name, x.name, n)
                for n, shape in enumerate(shapes)
                if compatible(shape, x.shape)
            ]
    return keys


def to_operand(module: Module, key: Key) -> Module:
    """Replace an instruction by one of its operands."""
    draft = Draft(module.computation[key.computation])
    for i, x in enumerate(draft.old.instructions):
        if x.name == key.instruction and key.choice < len(x.operands):
            draft.place[i] = draft.place[x.operands[key.choice]]
        else:
            draft.copy(i)
    return with_computation(module, draft.finish())


# ---- calls and loops --------------------------------------------------------------------------
def branches(module: Module) -> list[Key]:
    """List the branches of conditionals, and the bodies of loops."""
    keys = []
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode == "conditional":
                count = len(x.attributes.called)
                keys += [Key(computation.name, x.name, n) for n in range(count)]
            elif x.opcode == "while":
                keys.append(Key(computation.name, x.name))
    return keys


def to_call(module: Module, key: Key) -> Module:
    """Replace a conditional by a call of one branch, a loop by a call of its body."""
    draft = Draft(module.computation[key.computation])
    for i, x in enumerate(draft.old.instructions):
        if x.name == key.instruction and x.opcode in ("conditional", "while"):
            operand = x.operands[0] if x.opcode == "while" else x.operands[1 + key.choice]
            name = (
                x.attributes.text("body")
                if x.opcode == "while"
                else x.attributes.called[key.choice]
            )
            draft.place[i] = draft.add(
                "call", "call", x.shape, [draft.place[operand]],
                attributes=calling({"to_apply": name}),
            )  # fmt: skip
        else:
            draft.copy(i)
    return with_computation(module, draft.finish())


def calls(module: Module) -> list[Key]:
    """List what can be written out in its caller."""
    return instructions_of(module, lambda c, i, x: inlinable(x))


# ---- what does not compute --------------------------------------------------------------------
DECORATIONS = (
    "sharding", "frontend_attributes", "control-predecessors", "parameter_replication",
    "statistics", "origin", "original_value", "debug_attributes", "result_accuracy",
    "operand_precision", "algorithm", "output_to_operand_aliasing", "indices_are_sorted",
    "unique_indices",
)  # fmt: skip
"""Attributes that an instruction can do without, by choice of an item, after its metadata."""


def decorated(module: Module) -> list[Key]:
    """List instructions with metadata, backend configurations or attributes to spare."""
    return instructions_of(
        module,
        lambda c, i, x: bool(x.metadata or x.backend_config or spare_attributes(x)),
    )


def spare_attributes(x: Instruction) -> list[str]:
    """Return which attributes an instruction can do without."""
    required = OPS[x.opcode].required if x.opcode in OPS else frozenset()
    return [key for key in DECORATIONS if key in x.attributes and key not in required]


def drop_decorations(module: Module, keys: Sequence[Key]) -> Module:
    """Leave metadata and spare attributes out."""
    for name, wanted in by_computation(keys).items():
        draft = Draft(module.computation[name])
        for i, x in enumerate(draft.old.instructions):
            if x.name in wanted:
                kept = without(x.attributes, spare_attributes(x))
                draft.copy(i, metadata="", backend_config="", attributes=kept)
            else:
                draft.copy(i)
        module = with_computation(module, draft.finish())
    return module


def header_items(module: Module) -> list[Key]:
    """List the header's attributes, and its stack tables as one more."""
    keys = [Key("", name) for name in module.attributes]
    return [*keys, Key("", "")] if module.stack_tables else keys


def drop_header_items(module: Module, keys: Sequence[Key]) -> Module:
    """Leave attributes out of the header."""
    names = {k.instruction for k in keys}
    tables = "" if "" in names else module.stack_tables
    return replace(module, attributes=without(module.attributes, names), stack_tables=tables)


PASSES = (
    Pass("drop header attributes", header_items, drop_header_items),
    Pass("drop metadata and spare attributes", decorated, drop_decorations),
    Pass("drop computations", uncalled_computations, drop_computations),
    Pass("drop dead instructions", dead_instructions, drop_instructions),
    Pass("drop outputs", outputs, drop_outputs),
    Pass("move the root up", earlier_roots, move_root, chunked=False),
    Pass(
        "replace by parameters",
        entry_arrays,
        to_parameters,
    ),
    Pass("replace by zeros", lambda m: instructions_of(m, lambda c, i, x: not is_zero(c, x)),
         to_zeros),
    Pass("replace by an operand", operand_choices, one_by_one(to_operand), chunked=False),
    Pass("take one branch or one trip", branches, one_by_one(to_call), chunked=False),
    Pass("inline calls", calls, one_by_one(inlined)),
    Pass("carry less through loops", state_elements, one_by_one(narrowed_loop), chunked=False),
    Pass("drop parameters", unused_parameters, drop_parameters),
    Pass("shrink sizes", sizes_to_shrink, resized, chunked=False),
)  # fmt: skip
"""In the order in which they are tried: what cuts most comes first."""

__all__ = ["PASSES", "NotReducibleError", "Pass"]
