"""Why classes of ops take more than twice their bound.

The bound is the tighter of poplibs's estimate and the machine's limits. A class may have several
reasons, and classes may share them.
"""

LEAST_SHARE = 0.5
"""Of the bound in what a class takes; below, it needs a reason."""

_ERF = (
    "XLA writes erfc out in f32, both branches and a choice: about 90 float ops for two elements, "
    "which fill the pipeline, as many slots as popops's own erf of f32 has. An erf rounded to "
    "f16 is off by f16's precision of 1: gelu of -3 would have one digit right."
)
_WIDE = (
    "The text computes in f32, two lanes a slot, from f16 and back, casts included; poplibs "
    "computes on f16."
)
_GRID = (
    "What only elementwise ops read is spread as any value, one dimension after the other: 16 x 4 "
    "x 2 x 8 parts, the largest of 3,360 elements where 2,181 would be even. Even grids are for "
    "what regions reduce: others would move to and fro between neighbours' grids."
)
_GIVEN = "A parameter lies as it does for any reader; results are made where their reader is."
_BITS = (
    "poplibs's vertex draws its bits from the machine and masks in the same loop. Bits of the text "
    "are values: four bytes an element, which are stored, loaded, and compared one by one, as no "
    "vector instruction compares integers."
)
_WEIGHTS = (
    "12,544 positions are summed over: tiles get some of them each, and partial sums of all tiles "
    "are exchanged and added. The bound multiplies as if windows lay side by side already."
)
_GROUPS = (
    "Four channels a group fill a quarter of the unit's inputs: the bound is one plan of poplin's "
    "vertex for few channels without its halo, ours brings the halo and rearranges channels."
)
_SMALL = "A few hundred elements a tile: barriers, start-up and messages are most of it."

REASONS: dict[str, tuple[str, ...]] = {
    "gelu, erf": (_ERF,),
    "gelu, erf, gradient": (_ERF,),
    "dropout, bits given": (_BITS,),
    "dropout, rbg": (
        _BITS,
        "The operand is brought to where bits are drawn, cut otherwise than it lies.",
    ),
    "dropout, threefry2x32": (
        _BITS,
        "ThreeFry's bits are of 20 rounds of integers, one slot an op and element, to the bit.",
    ),
    "normal, rbg": (
        "JAX's normal numbers are the inverse of erf of uniform ones, a polynomial of f32 and a "
        "logarithm; poplibs adds up what the chip draws, which are other numbers.",
    ),
    "batch norm inference": (_GRID,),
    "batch norm inference, constants f32": (_WIDE, _GRID),
    "concatenate": (_GIVEN, _SMALL),
    "split": (_GIVEN, "Three results lie on all tiles each, so that all of it is exchanged."),
    "slice": (
        _SMALL,
        "What goes to one tile is put together before it is sent, in runs of some columns.",
    ),
    "pad": (
        "The border is written everywhere first; then what lies in blocks of 56 rows and columns "
        "is put together again, sent and taken apart into blocks of 58.",
    ),
    "broadcast": (_SMALL,),
    "reverse": (
        "Runs of one half each: 5.1 cycles a byte, as Poplar's copies of such runs take by "
        "poplibs's own regression (poplin/ConvModel.cpp:1575); no vertex turns vectors around.",
    ),
    "gather of one a row": (
        _SMALL,
        "JAX adds the row's length to negative indices and checks them, each a step of its own.",
    ),
    "cumsum": (
        "Each element is added to the total before it, one in a slot, after the totals of six "
        "pieces are known; 1,024 rows leave 448 tiles idle. The bound adds two at once.",
    ),
    "one-hot": (
        "The text compares all classes with each label, one by one; poplibs's vertex writes zeros "
        "and a single one.",
    ),
    "convolution 3x3, weight gradient": (_WEIGHTS,),
    "convolution 3x3, stride 2, weight gradient": (_WEIGHTS,),
    "convolution 7x7, stride 2, weight gradient": (
        _WEIGHTS,
        "Three channels fill a fifth of the unit's inputs.",
    ),
    "convolution 3x3 in 32 groups": (_GROUPS,),
    "convolution 3x3 in 32 groups, image gradient": (_GROUPS,),
    "convolution 3x3 in 32 groups, weight gradient": (_WEIGHTS, _GROUPS),
    "convolution depthwise 3x3, image gradient": (
        "The bound is poplin's vertex without the halo that ours brings, and a barrier.",
    ),
    "convolution depthwise 3x3, weight gradient": (
        _WEIGHTS,
        "Before, windows are rearranged on the tile.",
    ),
}
