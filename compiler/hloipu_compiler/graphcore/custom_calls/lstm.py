"""LSTM layers over time, and their gradients.

Gates in kernel and bias: forget, input, candidate, output (graphcore/poplibs:
include/popnn/LstmDef.hpp). The kernel has the rows of the input, then those of the state. What the
forward op keeps for the backward one is, for each step, the gates as above, the tanh of the cell,
and the cell before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Loop, Step, Value, row_at, with_row_at

_ACTIVATIONS = {"tanh": "tanh", "sigmoid": "logistic"}


def activations(call: Call) -> tuple[str, str]:
    """Return the opcodes of the candidate's activation and of the gates'."""
    opcodes = []
    for key, default in (("activation", "tanh"), ("recurrent_activation", "sigmoid")):
        name = str(call.attributes.get(key, default)).lower()
        if name not in _ACTIVATIONS:
            raise call.unsupported(
                f"its {key} is {name[:40]!r}", "tanh and sigmoid are there; write others out in HLO"
            )
        opcodes.append(_ACTIVATIONS[name])
    return opcodes[0], opcodes[1]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a layer: steps, batch, elements of an input and of the state."""

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


class _LstmStep(Step):
    """h = o tanh(c'), c' = f c + i g."""

    def __init__(self, call: Call, sizes: Sizes, lengths: bool) -> None:
        self.activation, self.gate = activations(call)
        self.sizes = sizes
        self.lengths = lengths

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        x, kernel, bias, *state = carried
        lengths = state.pop(0) if self.lengths else None
        h, c, outputs, saved = state
        units, batch = self.sizes.units, self.sizes.batch
        row = row_at(x, iteration).concatenated([h], 1)
        biases = bias.reshaped((4 * units,)).broadcast((batch, 4 * units), [1])
        summed = row.product(kernel) + biases
        parts = [summed.sliced(1, n * units, (n + 1) * units) for n in range(4)]
        forget, input_gate, output = (parts[n].unary(self.gate) for n in (0, 1, 3))
        candidate = parts[2].unary(self.activation)
        cell = forget * c + input_gate * candidate
        squashed = cell.unary(self.activation)
        hidden = output * squashed
        new_h, new_c, shown = hidden, cell, hidden
        if lengths is not None:
            goes_on = lengths.compared("GT", iteration.broadcast(lengths.dims, ()))
            goes_on = goes_on.broadcast((batch, units), [0])
            new_h, new_c = goes_on.select(hidden, h, h), goes_on.select(cell, c, c)
            shown = goes_on.select(hidden, 0.0, hidden)
        rows = [forget, input_gate, candidate, output, squashed, c]
        saved_rows = rows[0].reshaped((1, batch, units)).concatenated(
            [r.reshaped((1, batch, units)) for r in rows[1:]], 0
        )  # fmt: skip
        saved = with_row_at(saved, saved_rows, iteration)
        first = [lengths] if lengths is not None else []
        return [
            x,
            kernel,
            bias,
            *first,
            new_h,
            new_c,
            with_row_at(outputs, shown, iteration),
            saved,
        ]


@formula("LstmLayerFwd", "DynamicLstmLayerFwd")
def _lstm(call: Call) -> Sequence[Value]:
    dynamic = call.target.startswith("Dynamic")
    call.takes(6 if dynamic else 5)
    x, h, c, kernel, bias = (v.wide() for v in call.operands[:5])
    sizes = sizes_of(call, 4, kernel, (4,))
    text = call.text
    outputs = text.full("f32", (sizes.steps, sizes.batch, sizes.units), 0)
    saved = text.full("f32", (sizes.steps, 6, sizes.batch, sizes.units), 0)
    lengths = [call.operands[5].converted("s32")] if dynamic else []
    arrays = [x, kernel, bias, *lengths, h, c, outputs, saved]
    carried = Loop(call.text, sizes.steps).run(arrays, _LstmStep(call, sizes, dynamic))
    results = [carried[-2], carried[-3], carried[-1]]
    kind = call.operands[0].kind
    return [value.converted(kind) for value in results[: len(call.results)]]


class _LstmBack(Step):
    """One step back: gradients of the gates, and what they add to kernel, bias, input and state."""

    def __init__(self, call: Call, sizes: Sizes) -> None:
        if activations(call) != ("tanh", "logistic"):
            raise call.unsupported(
                "its activations are not tanh and sigmoid", "write its gradient out in HLO"
            )
        self.sizes = sizes

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        x, h0, kernel, outputs, saved, d_outputs, dh, dc, dx, dw, db = carried
        units, batch, steps = self.sizes.units, self.sizes.batch, self.sizes.steps
        at = (iteration.text.number("s32", steps - 1)) - iteration
        before = (at - 1).binary("maximum", 0)
        is_first = at.compared("EQ", 0.0).broadcast(h0.dims, ())
        h = is_first.select(h0, row_at(outputs, before), h0)
        rows = row_at(saved, at)
        f, i, g, o, squashed, c = (
            rows.sliced(0, n, n + 1).reshaped((batch, units)) for n in range(6)
        )
        dh = dh + row_at(d_outputs, at)
        dc = dc + dh * o * (1.0 - squashed * squashed)
        parts = [
            dc * c * f * (1.0 - f), dc * g * i * (1.0 - i), dc * i * (1.0 - g * g),
            dh * squashed * o * (1.0 - o),
        ]  # fmt: skip
        gates = parts[0].concatenated(parts[1:], 1)
        back = gates.product(kernel.transposed((1, 0)))
        row = row_at(x, at).concatenated([h], 1)
        dw = dw + row.transposed((1, 0)).product(gates)
        db = db + gates.reduced("add", [0]).reshaped((4, units))
        dx = with_row_at(dx, back.sliced(1, 0, self.sizes.inputs), at)
        dh = back.sliced(1, self.sizes.inputs, self.sizes.inputs + units)
        return [x, h0, kernel, outputs, saved, d_outputs, dh, dc * f, dx, dw, db]


@formula("LstmLayerBwd")
def _lstm_gradient(call: Call) -> Sequence[Value]:
    """Gradients of input, state, cell, kernel and bias."""
    call.takes(10)
    x, h, _, kernel, bias, outputs, _, saved, d_outputs, dc = (v.wide() for v in call.operands)
    sizes = sizes_of(call, 4, kernel, (4,))
    text = call.text
    zeros = [text.full("f32", v.dims, 0) for v in (h, x, kernel, bias)]
    dh, dx, dw, db = zeros
    arrays = [x, h, kernel, outputs, saved, d_outputs, dh, dc, dx, dw, db]
    carried = Loop(call.text, sizes.steps).run(arrays, _LstmBack(call, sizes))
    dh, dc, dx, dw, db = carried[-5:]
    kind = call.operands[0].kind
    return [value.converted(kind) for value in (dx, dh, dc, dw, db)]
