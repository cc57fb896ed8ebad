"""Cases of the random ops: bits are compared, draws of stateful generators by their properties."""

from collections.abc import Iterator

from tools.conformance.case import Case, Dimensions, Input, module_text, of_one_op, shape_text
from tools.conformance.types import FLOATS, INTEGERS

SHAPES: tuple[Dimensions, ...] = (
    (),
    (1,),
    (7,),
    (4, 5),
    (0, 3),
    (2, 3, 1, 5),
    (2, 1, 3, 2, 3),
    (1001,),
)
STATES = (
    ("rng_three_fry", 2),
    ("rng_philox", 3),
    ("rng_default", 2),
    ("rng_default", 3),
    ("rng_philox", 2),
)


def cases() -> Iterator[Case]:
    """Yield all cases of this family."""
    for algorithm, words in STATES:
        for t in (*INTEGERS, *FLOATS):
            for sizes in SHAPES:
                shapes = f"(u64[{words}], {shape_text(t, sizes)})"
                yield of_one_op(
                    "rng-bit-generator", [Input("u64", (words,), "words")], shapes,
                    f"algorithm={algorithm}", element_type=t,
                    variant=f"{algorithm} {shape_text(t, sizes)}",
                )  # fmt: skip
    for t in (*FLOATS, "s32", "u32", "s64", "u64"):
        for distribution in ("rng_uniform", "rng_normal"):
            for sizes in SHAPES:
                if distribution == "rng_normal" and t not in FLOATS:
                    continue
                yield of_one_op(
                    "rng", [Input(t, (), "zeros"), Input(t, (), "ones")], shape_text(t, sizes),
                    f"distribution={distribution}",
                    variant=f"{distribution} {shape_text(t, sizes)}", judged=distribution,
                )  # fmt: skip
    for delta in (1, 4096):
        text = module_text([], f"u64[2] rng-get-and-update-state(), delta={delta}")
        yield Case("rng-get-and-update-state", "u64", str(delta), text, (), judged="shape")
