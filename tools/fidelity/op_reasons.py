"""Why classes of ops are far from the machine's limits or above poplibs's estimates.

A class needs a reason where its limit is less than half of its compute, or its compute more than
1.2 times poplibs's. It may have several, and share them.
"""

LEAST_SHARE = 0.5
"""Of the limit in the compute; below, a class needs a reason."""
MOST_OF_LIBRARY = 1.2
"""Times of poplibs's estimate; above, a class needs a reason."""

_ROWS = (
    "Each row is gone through again by every reduction of it, stored and loaded between, and 1,024 "
    "rows leave 448 of the 1,472 tiles idle."
)
_SUMS_OF_ROWS = (
    "As the norm; besides, the sums over rows are made of partial sums of tiles, in three more "
    "compute sets that are mostly start-up."
)
_GRID = (
    "A grid cuts each dimension into equal blocks: 16 x 4 x 2 x 8 parts, the largest of 3,360 "
    "elements where 2,181 would be even. The most even grids leave all channels in each part, and "
    "so more partial sums to exchange."
)
_HEADS = (
    "A head is spread over 12 tiles: a pass of the AMP over some 32 positions loads weights and "
    "starts six workers for as long as it multiplies, by poplin's own formula. Larger parts are "
    "exchanged for longer than they save."
)
_WEIGHTS = (
    "12,544 positions are summed over: tiles get some of them each, and partial sums of all tiles "
    "are exchanged and added. The gradient is too small to give each tile its own part of it."
)
_ERF = (
    "XLA writes erfc out in f32, both branches and a choice: about 90 float ops for "
    "two elements, each rounded by itself, which fill the pipeline. poplibs's erf is a function of "
    "its own, with other values."
)

REASONS: dict[str, tuple[str, ...]] = {
    "softmax": ("Six compute sets, of which three load and two store all elements.",),
    "softmax gradient": ("Start-up of two loops over each row of 128, 32 vectors long.",),
    "layer norm": (_ROWS,),
    "layer norm gradients": (_SUMS_OF_ROWS,),
    "batch norm": (_GRID, "Statistics go through three stages of partial sums."),
    "batch norm gradients": (
        _GRID,
        "The operand's gradient is computed in f32, two lanes a slot, as the text has it; "
        "and each of six sums over positions loads its operands for itself.",
    ),
    "batch norm inference": (_GRID,),
    "same, constants f32": (
        _GRID,
        "f32 constants make f32 of all three ops: nine slots for four elements, casts "
        "included, where f16 takes three; poplibs computes in f16.",
    ),
    "group norm": ("Groups of channels do not lie together: the operand is exchanged twice.",),
    "gelu, tanh": (
        "Ten slots a vector are what the text has, each op rounded by itself; poplibs's loop does "
        "three of them with one rounding (f16v4mix), which gives other values.",
    ),
    "gelu, tanh, gradient": (
        "21 float ops in the text, each rounded by itself; poplibs's estimate has five slots.",
    ),
    "gelu, erf": (_ERF,),
    "gelu, erf, gradient": (_ERF,),
    "dropout, bits given": (
        "The bits are four bytes an element, and are compared one by one: no vector instruction "
        "compares integers. poplibs's vertex draws its bits from the machine.",
    ),
    "embedding": (
        "Tiles have some rows each: workers pass over the places elsewhere, in eight slots each, "
        "write zeros for them, and put the candidates of all tiles together.",
    ),
    "transpose": ("48 blocks of 4 x 4 on each of 1,024 tiles: start-up is more than half of it.",),
    "cumsum": (
        "Each element is added to the total before it, one in a slot, after the totals of six "
        "pieces are known; 1,024 rows leave 448 tiles idle.",
    ),
    "sum of rows": (
        "A row a tile: 16 vectors a worker, less than what starting, ending and putting six sums "
        "together takes; and the sum is cast from f32 in a compute set of its own.",
    ),
    "argmax": (
        "To keep a value with its place takes three slots an element, where a sum takes a quarter "
        "of one; and the places are an operand, which is written and loaded.",
    ),
    "top-k": (
        "Each element is looked at once, in three slots; then eight times the best group's next "
        "best is looked for, and the bests of pieces are merged. No vector "
        "instruction knows places.",
    ),
    "QK of heads": (_HEADS,),
    "PV of heads": (_HEADS,),
    "weight gradient, 1x1": (_WEIGHTS,),
    "weight gradient, 3x3": (_WEIGHTS,),
    "weight gradient, depthwise 3x3": (
        _WEIGHTS,
        "Before, windows are rearranged on the tile.",
    ),
}
