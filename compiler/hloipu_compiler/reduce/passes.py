"""The edits that reduction tries, in order.

A pass never minds whether a candidate is valid or still interesting; `reducer` asks.
"""

from hloipu_compiler.reduce.call_passes import branches, calls, to_call
from hloipu_compiler.reduce.inlining import inlined
from hloipu_compiler.reduce.interface_passes import (
    drop_outputs,
    drop_parameters,
    earlier_roots,
    move_root,
    outputs,
    unused_parameters,
)
from hloipu_compiler.reduce.loop_state import narrowed_loop, state_elements
from hloipu_compiler.reduce.selecting import Pass, instructions_of, one_by_one
from hloipu_compiler.reduce.shrinking import resized, sizes_to_shrink
from hloipu_compiler.reduce.spare_passes import (
    dead_instructions,
    decorated,
    drop_computations,
    drop_decorations,
    drop_header_items,
    drop_instructions,
    header_items,
    uncalled_computations,
)
from hloipu_compiler.reduce.value_passes import (
    entry_arrays,
    is_zero,
    operand_choices,
    to_operand,
    to_parameters,
    to_zeros,
)

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
