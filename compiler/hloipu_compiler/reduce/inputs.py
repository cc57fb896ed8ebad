"""Edits that turn computed values into inputs of a callee and its callers.

A loop carries such a value along unchanged, a call hands it over, the entry takes it as an
argument.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from hloipu_compiler.analysis.call_graph import CallSite, call_sites
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.reduce.entry import is_replaceable
from hloipu_compiler.reduce.rewriting import (
    PASSES_OPERANDS,
    Draft,
    Key,
    NotReducibleError,
    by_computation,
    instructions_of,
    without_interface,
)
from hloipu_compiler.reduce.simplifying import is_zero

Fill = Callable[[Draft, Sequence[int]], Sequence[int]]
"""Copies a computation into a draft, of which some positions hold the new inputs; returns what a
loop hands on to their next iteration."""


def computed_below(module: Module) -> list[Key]:
    """List what callees compute and values from outside can stand for."""
    keys = instructions_of(
        module, lambda c, i, instruction: i != c.root and computes(c, instruction)
    )
    return [k for k in keys if k.computation != module.entry.name]


def computes(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction is more than an input or zeros already.

    Zeros stand where a loop carries less: inputs in their place would be carried again.
    """
    if instruction.opcode == "get-tuple-element":
        return computation.instructions[instruction.operands[0]].opcode != "parameter"
    return is_replaceable(instruction) and not is_zero(computation, instruction)


def to_inputs(module: Module, keys: Sequence[Key]) -> Module:
    """Replace values computed by callees by inputs.

    Raises NotReducibleError where a callee is called in another way than by calls and loops.
    """
    for name, wanted in by_computation(keys).items():
        computation = module.computation[name]
        gone = {i for i, op in enumerate(computation.instructions) if op.name in wanted}
        read_positions = [i for i in sorted(gone) if not gone.issuperset(computation.users[i])]
        shapes = [computation.instructions[i].shape for i in read_positions]
        module = with_inputs(module, name, shapes, partial(_fill_without, gone, read_positions))
    return module


def _fill_without(
    gone: Collection[int], read_positions: Sequence[int], draft: Draft, inputs: Sequence[int]
) -> Sequence[int]:
    draft.place.update(zip(read_positions, inputs, strict=True))
    for i in range(len(draft.old.instructions)):
        if i not in gone and i not in draft.place:
            draft.copy(i)
    return inputs


def loop_bodies(module: Module) -> list[str]:
    """Return the names of loops' bodies, the largest first."""
    names = {
        op.attributes.text("body")
        for c in module.computations
        for op in c.instructions
        if op.opcode == "while"
    }
    return sorted(names, key=lambda name: (-len(module.computation[name].instructions), name))


def cut_body_before(module: Module, name: str, length: int) -> Module:
    """Replace a body's first instructions by inputs where others read them."""
    body = module.computation[name]
    first = body.instructions[:length]
    return to_inputs(
        module,
        [Key(name, instruction.name) for instruction in first if computes(body, instruction)],
    )


def cut_body_after(module: Module, name: str, length: int) -> Module:
    """Keep a loop body's first instructions; those that none of them reads become its results.

    The loop carries them as new elements of its state, and the old ones along unchanged.
    """
    body = module.computation[name]
    first_instructions = body.instructions[:length]
    read_positions = {o for instruction in first_instructions for o in instruction.operands}
    ends = [
        i
        for i, op in enumerate(first_instructions)
        if i not in read_positions and computes(body, op)
    ]
    if not ends:
        raise NotReducibleError

    def fill(draft: Draft, _inputs: Sequence[int]) -> Sequence[int]:
        (state,), shape = body.parameters, body.instructions[body.root].shape
        for i in range(length):
            if i not in draft.place:
                draft.copy(i)
        draft.place[body.root] = _parts(draft, draft.place[state], shape)
        return [draft.place[i] for i in ends]

    return with_inputs(module, name, [body.instructions[i].shape for i in ends], fill)


def with_inputs(module: Module, name: str, shapes: Sequence[Shape], fill: Fill) -> Module:
    """Return the module with a computation refilled, which has more inputs than before."""
    computation = module.computation[name]
    draft = Draft(computation)
    if name == module.entry.name:
        fill(draft, _parameters(draft, shapes))
        return without_interface(with_computation(module, draft.finish()))
    sites = call_sites(module)[name]
    opcodes = {s.caller.instructions[s.position].opcode for s in sites}
    if opcodes <= PASSES_OPERANDS:
        fill(draft, _parameters(draft, shapes))
        module = with_computation(module, draft.finish())
        for caller in dict.fromkeys(s.caller.name for s in sites):
            module = _with_operands(module, caller, sites, shapes)
        return module
    if opcodes == {"while"} and len(sites) == 1:
        return _with_state(module, sites[0], name, shapes, fill)
    raise NotReducibleError


def _parameters(draft: Draft, shapes: Sequence[Shape]) -> list[int]:
    first = len(draft.old.parameters)
    return [
        draft.add("arg", "parameter", shape, parameter_number=first + n)
        for n, shape in enumerate(shapes)
    ]


def _with_operands(
    module: Module, caller: str, sites: Sequence[CallSite], shapes: Sequence[Shape]
) -> Module:
    """Return the module with a caller that hands inputs of its own to what it calls."""
    positions = {s.position for s in sites if s.caller.name == caller}

    def fill(draft: Draft, inputs: Sequence[int]) -> Sequence[int]:
        for i, instruction in enumerate(draft.old.instructions):
            if i in positions:
                operands = (*(draft.place[o] for o in instruction.operands), *inputs)
                attributes = without(instruction.attributes, {"output_to_operand_aliasing"})
                draft.copy(i, operands=operands, attributes=attributes)
            elif i not in draft.place:
                draft.copy(i)
        return inputs

    return with_inputs(module, caller, shapes, fill)


def _with_state(
    module: Module, site: CallSite, body_name: str, shapes: Sequence[Shape], fill: Fill
) -> Module:
    loop = site.caller.instructions[site.position]
    if not isinstance(loop.shape, TupleShape) or loop.attributes.text("body") != body_name:
        raise NotReducibleError
    narrow = loop.shape
    wide = TupleShape((*narrow.elements, *shapes))
    count = len(narrow.elements)

    body = module.computation[body_name]
    draft = Draft(body)
    state = _widened_state(draft, body, wide)
    inputs = [_element(draft, state, shape, count + n) for n, shape in enumerate(shapes)]
    handed_on = fill(draft, inputs)
    elements = _elements(draft, draft.place[body.root], narrow)
    root = draft.add("state", "tuple", wide, [*elements, *handed_on])
    module = with_computation(module, draft.finish(root))

    condition = module.computation[loop.attributes.text("condition")]
    if len(call_sites(module)[condition.name]) != 1:
        raise NotReducibleError
    draft = Draft(condition)
    _widened_state(draft, condition, wide)
    for i in range(len(condition.instructions)):
        if i not in draft.place:
            draft.copy(i)
    module = with_computation(module, draft.finish())

    def caller(draft: Draft, inputs: Sequence[int]) -> Sequence[int]:
        for i, instruction in enumerate(draft.old.instructions):
            if i == site.position:
                start = _elements(draft, draft.place[instruction.operands[0]], narrow)
                widened = draft.add("state", "tuple", wide, [*start, *inputs])
                at = draft.copy(i, operands=(widened,), shape=wide)
                draft.place[i] = _narrow(draft, draft.old, i, at, narrow)
            elif i not in draft.place:
                draft.copy(i)
        return inputs

    return with_inputs(module, site.caller.name, shapes, caller)


def _widened_state(draft: Draft, computation: Computation, wide: TupleShape) -> int:
    """Widen the state parameter; users of the whole read a tuple of the old elements."""
    (position,) = computation.parameters
    old = computation.instructions[position].shape
    at = draft.copy(position, shape=wide)
    draft.place[position] = _narrow(draft, computation, position, at, old)
    return at


def _narrow(draft: Draft, old: Computation, position: int, at: int, shape: Shape) -> int:
    """Return what the users of a widened tuple read: itself, if they only read elements."""
    users = [old.instructions[i] for i in old.users[position]]
    if position != old.root and all(op.opcode == "get-tuple-element" for op in users):
        return at
    return _parts(draft, at, shape)


def _parts(draft: Draft, at: int, shape: Shape) -> int:
    """Return a tuple of a narrower shape, its elements read from a wider one."""
    if not isinstance(shape, TupleShape):
        raise NotReducibleError
    parts = [_element(draft, at, part, n) for n, part in enumerate(shape.elements)]
    return draft.add("parts", "tuple", shape, parts)


def _elements(draft: Draft, at: int, shape: TupleShape) -> list[int]:
    source = draft.made[at]
    if source.opcode == "tuple":
        return list(source.operands)
    return [_element(draft, at, part, n) for n, part in enumerate(shape.elements)]


def _element(draft: Draft, at: int, shape: Shape, index: int) -> int:
    return draft.add(
        "part", "get-tuple-element", shape, [at], attributes=Attributes({"index": index})
    )
