"""Layers of LSTM and GRU over time, and the gradients of LSTM.

Gates of LSTM in kernel and bias: forget, input, candidate, output; of GRU: reset, update,
candidate (graphcore/poplibs: include/popnn/LstmDef.hpp, GruDef.hpp). The kernel has the rows of the
input, then those of the state. What the forward op keeps for the backward one is, for each step,
the gates as above, the tanh of the cell, and the cell before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.popops.call import Call, formula
from hloipu_compiler.popops.text import Text, Value, shape_text

_ACTIVATIONS = {"tanh": "tanh", "sigmoid": "logistic"}


def _activations(call: Call) -> tuple[str, str]:
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
class _Loop:
    """A loop over time, in the text of its body: a counter and arrays go on."""

    call: Call
    steps: int

    def run(self, arrays: Sequence[Value], body: "_Body") -> list[Value]:
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


class _Body:
    """What a step makes of the arrays before it."""

    def __call__(self, turn: Value, given: Sequence[Value]) -> Sequence[Value]:
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
class _Sizes:
    steps: int
    batch: int
    inputs: int
    units: int


def _sizes(call: Call, gates: int, kernel: Value, bias_dims: Sequence[int]) -> _Sizes:
    """Return a layer's sizes, checked."""
    x, state = call.operands[0], call.operands[1]
    call.need(x.rank == 3 and state.rank == 2, "it takes input over time, and a state")
    steps, batch, inputs = x.dims
    sizes = _Sizes(steps, batch, inputs, state.dims[1])
    call.need(state.dims[0] == sizes.batch, "its state has another batch than its input")
    call.need(kernel.dims == (sizes.inputs + sizes.units, gates * sizes.units),
              f"its kernel is no {sizes.inputs + sizes.units} x {gates * sizes.units}")  # fmt: skip
    wanted = (*bias_dims, sizes.units)
    call.need(call.operands[4 if gates == 4 else 3].dims == wanted, f"its biases are no {wanted}")
    return sizes


# -- LSTM ------------------------------------------------------------------------------------------


class _LstmStep(_Body):
    """h = o tanh(c'), c' = f c + i g."""

    def __init__(self, call: Call, sizes: _Sizes, lengths: bool) -> None:
        self.activation, self.gate = _activations(call)
        self.sizes = sizes
        self.lengths = lengths

    def __call__(self, turn: Value, given: Sequence[Value]) -> Sequence[Value]:
        x, kernel, bias, *others = given
        lengths = others.pop(0) if self.lengths else None
        h, c, outputs, kept = others
        units, batch = self.sizes.units, self.sizes.batch
        row = at_step(x, turn).joined([h], 1)
        biases = bias.shaped((4 * units,)).spread((batch, 4 * units), [1])
        summed = row.product(kernel) + biases
        parts = [summed.sliced(1, n * units, (n + 1) * units) for n in range(4)]
        forget, taken, output = (parts[n].unary(self.gate) for n in (0, 1, 3))
        candidate = parts[2].unary(self.activation)
        cell = forget * c + taken * candidate
        squashed = cell.unary(self.activation)
        made = output * squashed
        new_h, new_c, shown = made, cell, made
        if lengths is not None:
            goes_on = lengths.compared("GT", turn.spread(lengths.dims, ()))
            goes_on = goes_on.spread((batch, units), [0])
            new_h, new_c = goes_on.chosen(made, h, h), goes_on.chosen(cell, c, c)
            shown = goes_on.chosen(made, 0.0, made)
        rows = [forget, taken, candidate, output, squashed, c]
        whole = rows[0].shaped((1, batch, units)).joined(
            [r.shaped((1, batch, units)) for r in rows[1:]], 0
        )  # fmt: skip
        kept = with_step(kept, whole, turn)
        first = [lengths] if lengths is not None else []
        return [x, kernel, bias, *first, new_h, new_c, with_step(outputs, shown, turn), kept]


@formula("LstmLayerFwd", "DynamicLstmLayerFwd")
def _lstm(call: Call) -> Sequence[Value]:
    dynamic = call.target.startswith("Dynamic")
    call.takes(6 if dynamic else 5)
    x, h, c, kernel, bias = (v.wide() for v in call.operands[:5])
    sizes = _sizes(call, 4, kernel, (4,))
    text = call.text
    outputs = text.full("f32", (sizes.steps, sizes.batch, sizes.units), 0)
    kept = text.full("f32", (sizes.steps, 6, sizes.batch, sizes.units), 0)
    lengths = [call.operands[5].converted("s32")] if dynamic else []
    arrays = [x, kernel, bias, *lengths, h, c, outputs, kept]
    made = _Loop(call, sizes.steps).run(arrays, _LstmStep(call, sizes, dynamic))
    found = [made[-2], made[-3], made[-1]]
    kind = call.operands[0].kind
    if dynamic and not call.flag("preserve_final_state", default=True):
        found[1] = made[-3]
    return [value.converted(kind) for value in found[: len(call.results)]]


class _LstmBack(_Body):
    """One step back: gradients of the gates, and what they add to kernel, bias, input and state."""

    def __init__(self, call: Call, sizes: _Sizes) -> None:
        activations = _activations(call)
        if activations != ("tanh", "logistic"):
            raise call.unsupported(
                "its activations are no tanh and sigmoid", "write its gradient out in HLO"
            )
        self.sizes = sizes

    def __call__(self, turn: Value, given: Sequence[Value]) -> Sequence[Value]:
        x, h0, kernel, outputs, kept, d_outputs, dh, dc, dx, dw, db = given
        units, batch, steps = self.sizes.units, self.sizes.batch, self.sizes.steps
        at = (turn.text.number("s32", steps - 1)) - turn
        before = (at - 1).combined("maximum", 0)
        is_first = at.compared("EQ", 0.0).spread(h0.dims, ())
        h = is_first.chosen(h0, at_step(outputs, before), h0)
        rows = at_step(kept, at)
        f, i, g, o, squashed, c = (
            rows.sliced(0, n, n + 1).shaped((batch, units)) for n in range(6)
        )
        dh = dh + at_step(d_outputs, at)
        dc = dc + dh * o * (1.0 - squashed * squashed)
        parts = [
            dc * c * f * (1.0 - f), dc * g * i * (1.0 - i), dc * i * (1.0 - g * g),
            dh * squashed * o * (1.0 - o),
        ]  # fmt: skip
        gates = parts[0].joined(parts[1:], 1)
        back = gates.product(kernel.turned((1, 0)))
        row = at_step(x, at).joined([h], 1)
        dw = dw + row.turned((1, 0)).product(gates)
        db = db + gates.reduced("add", [0]).shaped((4, units))
        dx = with_step(dx, back.sliced(1, 0, self.sizes.inputs), at)
        dh = back.sliced(1, self.sizes.inputs, self.sizes.inputs + units)
        return [x, h0, kernel, outputs, kept, d_outputs, dh, dc * f, dx, dw, db]


@formula("LstmLayerBwd")
def _lstm_gradient(call: Call) -> Sequence[Value]:
    """Gradients of input, state, cell, kernel and bias."""
    call.takes(10)
    x, h, _, kernel, bias, outputs, _, kept, d_outputs, dc = (v.wide() for v in call.operands)
    sizes = _sizes(call, 4, kernel, (4,))
    text = call.text
    zeros = [text.full("f32", v.dims, 0) for v in (h, x, kernel, bias)]
    dh, dx, dw, db = zeros
    arrays = [x, h, kernel, outputs, kept, d_outputs, dh, dc, dx, dw, db]
    made = _Loop(call, sizes.steps).run(arrays, _LstmBack(call, sizes))
    dh, dc, dx, dw, db = made[-5:]
    kind = call.operands[0].kind
    return [value.converted(kind) for value in (dx, dh, dc, dw, db)]


# -- GRU -------------------------------------------------------------------------------------------


class _GruStep(_Body):
    """h' = u h + (1 - u) g."""

    def __init__(self, call: Call, sizes: _Sizes, others: int) -> None:
        self.activation, self.gate = _activations(call)
        self.sizes = sizes
        self.others = others
        """Arrays besides: lengths of sequences, and scores of attention."""
        self.resets_after = call.flag("reset_after", default=False)

    def __call__(self, turn: Value, given: Sequence[Value]) -> Sequence[Value]:
        x, kernel, bias, *rest = given
        besides, (h, outputs) = rest[: self.others], rest[self.others :]
        units, inputs, batch = self.sizes.units, self.sizes.inputs, self.sizes.batch
        of_input, of_state = kernel.sliced(0, 0, inputs), kernel.sliced(0, inputs, inputs + units)
        row = at_step(x, turn).product(of_input)
        state = h.product(of_state)
        flat = bias.shaped((3, 2 if self.resets_after else 1, units))

        def part(value: Value, gate: int) -> Value:
            return value.sliced(1, gate * units, (gate + 1) * units)

        def offset(gate: int, which: int) -> Value:
            one = flat.sliced(0, gate, gate + 1).sliced(1, which, which + 1)
            return one.shaped((units,)).spread((batch, units), [1])

        def gate_of(gate: int) -> Value:
            total = part(row, gate) + part(state, gate) + offset(gate, 0)
            return (total + offset(gate, 1) if self.resets_after else total).unary(self.gate)

        reset, update = gate_of(0), gate_of(1)
        if self.resets_after:
            inner = reset * (part(state, 2) + offset(2, 1))
        else:
            inner = (reset * h).product(of_state.sliced(1, 2 * units, 3 * units))
        candidate = (part(row, 2) + offset(2, 0) + inner).unary(self.activation)
        if self.others == 2:
            score = at_step(besides[1], turn).spread((batch, units), [0])
            update = update * (1.0 - score)
        made = update * h + (1.0 - update) * candidate
        shown = made
        if besides:
            goes_on = besides[0].compared("GT", turn.spread(besides[0].dims, ()))
            goes_on = goes_on.spread((batch, units), [0])
            shown = goes_on.chosen(made, 0.0, made)
            made = goes_on.chosen(made, h, h)
        return [x, kernel, bias, *besides, made, with_step(outputs, shown, turn)]


@formula("GRULayerFwd", "DynamicGRULayerFwd", "AUGRULayerFwd")
def _gru(call: Call) -> Sequence[Value]:
    others = {"GRULayerFwd": 0, "DynamicGRULayerFwd": 1, "AUGRULayerFwd": 2}[call.target]
    call.takes(4 + others)
    x, h, kernel, bias = (v.wide() for v in call.operands[:4])
    resets_after = call.flag("reset_after", default=False)
    sizes = _sizes(call, 3, kernel, (3, 2) if resets_after else (3,))
    if len(call.results) > 1:
        raise call.unsupported(
            "it keeps values for its gradient, which hloipu does not know",
            'print it with "is_training": false, or write the layer out in HLO',
        )
    outputs = call.text.full("f32", (sizes.steps, sizes.batch, sizes.units), 0)
    besides = [
        v.converted(kind) for v, kind in zip(call.operands[4:], ("s32", "f32"), strict=False)
    ]
    arrays = [x, kernel, bias, *besides, h, outputs]
    made = _Loop(call, sizes.steps).run(arrays, _GruStep(call, sizes, others))
    return [made[-1].converted(call.operands[0].kind)]
