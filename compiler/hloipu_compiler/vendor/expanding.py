"""Custom calls of vendors' libraries replaced by the ops of HLO that compute the same.

Names and attributes of Graphcore's: graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/kernels/ops.proto and driver/tools/custom_ops/; of others: where
their formulas are. A target that somebody registered an implementation for is left alone.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.evaluate.custom_calls import LOWERED, REGISTRY
from hloipu_compiler.formulas.call import FORMULAS, Array, Call, arrays_of, attributes_of
from hloipu_compiler.formulas.errors import FormulaError
from hloipu_compiler.formulas.text import Text, Value, shape_text
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.attributes import Attributes, Raw
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.attribute_edits import renamed
from hloipu_compiler.passes.names import Names
from hloipu_compiler.popops import (  # noqa: F401  (they register their formulas)
    arrays,
    collectives,
    gru,
    images,
    lstm,
    nonlinearities,
    norms,
    pools,
    randomness,
    slices,
)
from hloipu_compiler.popops.opaque import without_opaque
from hloipu_compiler.popops.unknown import WHY
from hloipu_compiler.source import Source
from hloipu_compiler.vendor import (  # noqa: F401  (they register their formulas)
    cublas,
    cudnn,
    cudnn_attention,
    te_attention,
)

_INHERITED = ("frontend_attributes", "sharding")
_MAXIMAL = re.compile(r"maximal\s+device=-?[0-9]+")


def expanded(module: Module) -> Module:
    """Return a verified module without custom calls that have a formula.

    The same module, where it has none. Raises FormulaError: E0530 for those that have no meaning
    here, E0531 for those whose operands, results or attributes do not fit.
    """
    if "opaque[" in module.source.text:
        module = without_opaque(module)
    reached = {c.name for c in callees_first(module, only_reachable=True)}
    wanted = [
        c.name
        for c in module.computations
        if c.name in reached and any(target_of(x) for x in c.instructions)
    ]
    if not wanted:
        return module
    writer = _Expanding(module)
    found = {name: writer.expanded(module.computation[name]) for name in wanted}
    computations = [found.get(c.name, c) for c in module.computations]
    entry = module.entry.name
    whole = (*writer.callees, *computations)
    position = next(n for n, c in enumerate(whole) if c.name == entry)
    return replace(module, computations=whole, entry_position=position)


def target_of(x: Instruction) -> str:
    """Return which target with a formula an instruction calls; empty: none."""
    if x.opcode != "custom-call":
        return ""
    target = x.attributes.text("custom_call_target")
    if target in REGISTRY or target in LOWERED:
        return ""
    return target if target in FORMULAS or target in WHY else ""


class _Expanding:
    """Puts ops in the place of custom calls; equal formulas of equal shapes are written once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = Names(c.name for c in module.computations)
        self.callees: list[Computation] = []
        self.parsed: dict[str, Computation] = {}
        self.known: dict[tuple[object, ...], Computation] = {}

    def expanded(self, old: Computation) -> Computation:
        """Return a computation without custom calls that compute something."""
        names = Names(x.name for x in old.instructions)
        made: list[Instruction] = []
        place: list[int] = []
        for x in old.instructions:
            operands = tuple(place[i] for i in x.operands)
            target = target_of(x)
            if target:
                place.append(self._replaced(x, target, made, operands, names))
            else:
                place.append(len(made))
                made.append(x._replace(operands=operands))
        return replace(old, instructions=tuple(made), root=place[old.root])

    def _replaced(
        self, x: Instruction, target: str, made: list[Instruction], operands: Sequence[int],
        names: Names,
    ) -> int:  # fmt: skip
        """Append the ops of a custom call; return where its result is."""
        entry = self._formula(x, target, tuple(arrays_of(made[at].shape) for at in operands))
        said = _inherited(x)
        leaves = self._leaves(x, made, operands, said, names)
        place: dict[int, int] = {}
        results = entry.instructions[entry.root].operands
        last = results[-1] if len(results) == 1 and not isinstance(x.shape, TupleShape) else -1
        for at, inner in enumerate(entry.instructions):
            if inner.parameter_number >= 0:
                place[at] = leaves[inner.parameter_number]
            elif at != entry.root:
                place[at] = len(made)
                name = x.name if at == last else names.fresh(f"{x.name}.{inner.opcode}")
                made.append(_taken(inner, name, x, tuple(place[i] for i in inner.operands), said))
        found = tuple(place[i] for i in results)
        if not isinstance(x.shape, TupleShape):
            return found[0]
        kept = Attributes({k: x.attributes[k] for k in _INHERITED if k in x.attributes})
        made.append(x._replace(opcode="tuple", operands=found, attributes=kept, backend_config=""))
        return len(made) - 1

    def _leaves(
        self, x: Instruction, made: list[Instruction], operands: Sequence[int], said: Attributes,
        names: Names,
    ) -> list[int]:  # fmt: skip
        """Return the arrays that are operands, tuples taken apart."""
        found: list[int] = []
        for at in operands:
            shape = made[at].shape
            if not isinstance(shape, TupleShape):
                found.append(at)
                continue
            for index, part in enumerate(shape.elements):
                if not isinstance(part, ArrayShape):
                    raise FormulaError(
                        "E0531", f"custom call {x.name!r} takes a tuple of tuples",
                        hint="give it arrays", module=self.module, x=x,
                    )  # fmt: skip
                name = names.fresh(f"{x.name}.operand")
                attributes = Attributes({"index": index, **said})
                made.append(
                    Instruction(name, "get-tuple-element", part, (at,), attributes, x.metadata,
                                start=x.start, end=x.end)
                )  # fmt: skip
                found.append(len(made) - 1)
        return found

    def _formula(
        self, x: Instruction, target: str, given: tuple[tuple[Array, ...], ...]
    ) -> Computation:
        """Return the formula of a custom call, made once for all that are alike."""
        key = (target, given, arrays_of(x.shape), x.attributes, x.backend_config)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._parsed(self._text(x, target, given))
        return found

    def _text(self, x: Instruction, target: str, given: Sequence[Sequence[Array]]) -> str:
        """Return the formula of a custom call as a module's text."""
        text = Text()
        arrays_given = [array for one in given for array in one]
        values = tuple(text.parameter(n, *array) for n, array in enumerate(arrays_given))
        call = Call(self.module, x, target, text, values, arrays_of(x.shape), attributes_of(x))
        if target in WHY:
            raise call.unsupported(*WHY[target])
        results = list(FORMULAS[target](call))
        _check_results(call, results)
        return text.written(results)

    def _parsed(self, text: str) -> Computation:
        """Return the entry of a text; what it calls is among the callees."""
        found = self.parsed.get(text)
        if found is None:
            module = parse(Source(text, "<formula>")).without_places()
            names = {
                c.name: self.names.fresh(c.name) for c in module.computations
                if c.name != module.entry.name
            }  # fmt: skip
            for computation in module.computations:
                computation = _renamed(computation, names)
                if computation.name == module.entry.name:
                    found = computation
                else:
                    self.callees.append(replace(computation, name=names[computation.name]))
            if found is None:
                raise TypeError("a formula without entry")
            self.parsed[text] = found
        return found


def _inherited(x: Instruction) -> Attributes:
    """Return what the ops in the place of a custom call take over: marks, and its one device."""
    found = {k: x.attributes[k] for k in _INHERITED if k in x.attributes}
    text = x.attributes.text("sharding")
    if text.startswith("{{"):
        devices = set(_MAXIMAL.findall(text))
        found.pop("sharding")
        if len(devices) == 1:
            found["sharding"] = Raw(f"{{{devices.pop()}}}")
    return Attributes(found)


def _renamed(computation: Computation, names: dict[str, str]) -> Computation:
    instructions = tuple(
        x._replace(attributes=renamed(x.attributes, names)) if x.attributes.called else x
        for x in computation.instructions
    )
    return replace(computation, instructions=instructions)


def _taken(
    inner: Instruction, name: str, x: Instruction, operands: tuple[int, ...], said: Attributes
) -> Instruction:
    """Return an op of a formula in the place of the custom call."""
    attributes = Attributes({**inner.attributes, **said}, inner.attributes.called)
    return inner._replace(
        name=name, operands=operands, attributes=attributes, metadata=x.metadata,
        start=x.start, end=x.end,
    )  # fmt: skip


def _check_results(call: Call, results: Sequence[Value]) -> None:
    made = tuple((value.kind, value.dims) for value in results)
    if made != call.results:
        has = ", ".join(shape_text(*array) for array in call.results) or "nothing"
        gives = ", ".join(shape_text(*array) for array in made)
        raise call.wrong(f"it is declared as {has}, and gives {gives}", "correct its shape")
