"""Sizes and activations of recurrent layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call
from hloipu_compiler.formulas.text import Value

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
