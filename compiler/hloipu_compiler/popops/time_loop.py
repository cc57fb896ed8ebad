"""Loops over time, and the sizes and activations of layers that run in them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.popops.call import Call
from hloipu_compiler.popops.text import Text, Value, shape_text

_ACTIVATIONS = {"tanh": "tanh", "sigmoid": "logistic"}


def activations(call: Call) -> tuple[str, str]:
    """Return the opcodes of the candidate's activation and of the gates'."""
    found = []
    for key, default in (("activation", "tanh"), ("recurrent_activation", "sigmoid")):
        said = str(call.said.get(key, default)).lower()
        if said not in _ACTIVATIONS:
            raise call.unsupported(
                f"its {key} is {said[:40]!r}", "tanh and sigmoid are there; write others out in HLO"
            )
        found.append(_ACTIVATIONS[said])
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class TimeLoop:
    """A loop over time, in the text of its body: a counter and arrays go on."""

    call: Call
    steps: int

    def run(self, arrays: Sequence[Value], body: "Step") -> list[Value]:
        """Write the loop; `body` makes the arrays after a step of those before it."""
        text = self.call.text
        inner = Text()
        shapes = ["s32[]", *(shape_text(x.kind, x.dims) for x in arrays)]
        whole = f"({', '.join(shapes)})"
        inner.lines.append(f"  state = {whole} parameter(0)")
        turn = inner.add("get-tuple-element", "s32", (), "state", "index=0")
        given = [
            inner.add("get-tuple-element", x.kind, x.dims, "state", f"index={n + 1}")
            for n, x in enumerate(arrays)
        ]
        made = body(turn, given)
        names = ", ".join([(turn + 1).name, *(x.name for x in made)])
        number = len(text.callees)
        lines = "\n".join([*inner.lines, f"  ROOT next = {whole} tuple({names})"])
        text.callees |= inner.callees
        text.callees[f"body.{number}"] = f"body.{number} {{\n{lines}\n}}\n"
        text.callees[f"goes_on.{number}"] = (
            f"goes_on.{number} {{\n  state = {whole} parameter(0)\n"
            "  turn = s32[] get-tuple-element(state), index=0\n"
            f"  steps = s32[] constant({self.steps})\n"
            "  ROOT is = pred[] compare(turn, steps), direction=LT\n}\n"
        )
        first = text.number("s32", 0)
        start = f"v{len(text.lines)}"
        begun = ", ".join([first.name, *(x.name for x in arrays)])
        text.lines.append(f"  {start} = {whole} tuple({begun})")
        end = f"v{len(text.lines)}"
        said = f"condition=goes_on.{number}, body=body.{number}"
        text.lines.append(f"  {end} = {whole} while({start}), {said}")
        return [
            text.add("get-tuple-element", x.kind, x.dims, end, f"index={n + 1}")
            for n, x in enumerate(arrays)
        ]


class Step:
    """What a step makes of the arrays before it."""

    def __call__(self, turn: Value, given: Sequence[Value]) -> Sequence[Value]:
        """Write a step, of that number; return the arrays after it."""
        raise NotImplementedError


def at_step(x: Value, turn: Value) -> Value:
    """Return one step of an array over time."""
    zero = x.text.number("s32", 0)
    sizes = (1, *x.dims[1:])
    starts = ", ".join([turn.name, *[zero.name] * (x.rank - 1)])
    said = f"dynamic_slice_sizes={{{','.join(map(str, sizes))}}}"
    part = x.text.add("dynamic-slice", x.kind, sizes, f"{x.name}, {starts}", said)
    return part.shaped(x.dims[1:])


def with_step(whole: Value, part: Value, turn: Value) -> Value:
    """Return an array over time with one step replaced."""
    zero = whole.text.number("s32", 0)
    row = part.shaped((1, *part.dims))
    starts = ", ".join([turn.name, *[zero.name] * (whole.rank - 1)])
    given = f"{whole.name}, {row.name}, {starts}"
    return whole.text.add("dynamic-update-slice", whole.kind, whole.dims, given)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a layer: steps, samples of a batch, elements of an input and of the state."""

    steps: int
    batch: int
    inputs: int
    units: int


def sizes_of(call: Call, gates: int, kernel: Value, bias_dims: Sequence[int]) -> Sizes:
    """Return a layer's sizes, checked."""
    x, state = call.operands[0], call.operands[1]
    call.need(x.rank == 3 and state.rank == 2, "it takes input over time, and a state")
    steps, batch, inputs = x.dims
    sizes = Sizes(steps, batch, inputs, state.dims[1])
    call.need(state.dims[0] == sizes.batch, "its state has another batch than its input")
    call.need(kernel.dims == (sizes.inputs + sizes.units, gates * sizes.units),
              f"its kernel is no {sizes.inputs + sizes.units} x {gates * sizes.units}")  # fmt: skip
    wanted = (*bias_dims, sizes.units)
    call.need(call.operands[4 if gates == 4 else 3].dims == wanted, f"its biases are no {wanted}")
    return sizes
