"""GRU layers over time, with optional attention scores.

Gates in kernel and bias: reset, update, candidate (graphcore/poplibs: include/popnn/GruDef.hpp).
"""

from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Loop, Step, Value, row_at, with_row_at
from hloipu_compiler.graphcore.custom_calls.lstm import Sizes, activations, sizes_of


class _GruStep(Step):
    """h' = u h + (1 - u) g."""

    def __init__(self, call: Call, sizes: Sizes, optional_count: int) -> None:
        self.activation, self.gate = activations(call)
        self.sizes = sizes
        self.optional_count = optional_count
        """Arrays besides: lengths of sequences, and scores of attention."""
        self.resets_after = call.flag("reset_after", default=False)

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        x, kernel, bias, *state_and_optional = carried
        besides, (h, outputs) = (
            state_and_optional[: self.optional_count],
            state_and_optional[self.optional_count :],
        )
        units, inputs, batch = self.sizes.units, self.sizes.inputs, self.sizes.batch
        of_input, of_state = kernel.sliced(0, 0, inputs), kernel.sliced(0, inputs, inputs + units)
        row = row_at(x, iteration).product(of_input)
        state = h.product(of_state)
        flat = bias.reshaped((3, 2 if self.resets_after else 1, units))

        def part(value: Value, gate: int) -> Value:
            return value.sliced(1, gate * units, (gate + 1) * units)

        def offset(gate: int, which: int) -> Value:
            row_of_bias = flat.sliced(0, gate, gate + 1).sliced(1, which, which + 1)
            return row_of_bias.reshaped((units,)).broadcast((batch, units), [1])

        def gate_of(gate: int) -> Value:
            total = part(row, gate) + part(state, gate) + offset(gate, 0)
            return (total + offset(gate, 1) if self.resets_after else total).unary(self.gate)

        reset, update = gate_of(0), gate_of(1)
        if self.resets_after:
            inner = reset * (part(state, 2) + offset(2, 1))
        else:
            inner = (reset * h).product(of_state.sliced(1, 2 * units, 3 * units))
        candidate = (part(row, 2) + offset(2, 0) + inner).unary(self.activation)
        if self.optional_count == 2:
            score = row_at(besides[1], iteration).broadcast((batch, units), [0])
            update = update * (1.0 - score)
        new_h = update * h + (1.0 - update) * candidate
        shown = new_h
        if besides:
            goes_on = besides[0].compared("GT", iteration.broadcast(besides[0].dims, ()))
            goes_on = goes_on.broadcast((batch, units), [0])
            shown = goes_on.select(new_h, 0.0, new_h)
            new_h = goes_on.select(new_h, h, h)
        return [x, kernel, bias, *besides, new_h, with_row_at(outputs, shown, iteration)]


@formula("GRULayerFwd", "DynamicGRULayerFwd", "AUGRULayerFwd")
def _gru(call: Call) -> Sequence[Value]:
    optional_count = {"GRULayerFwd": 0, "DynamicGRULayerFwd": 1, "AUGRULayerFwd": 2}[call.target]
    call.takes(4 + optional_count)
    x, h, kernel, bias = (v.wide() for v in call.operands[:4])
    resets_after = call.flag("reset_after", default=False)
    sizes = sizes_of(call, 3, kernel, (3, 2) if resets_after else (3,))
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
    carried = Loop(call.text, sizes.steps).run(arrays, _GruStep(call, sizes, optional_count))
    return [carried[-1].converted(call.operands[0].kind)]
