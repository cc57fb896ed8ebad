"""What jaxlib's route (HLO text, StableHLO, XLA:CPU) cannot carry, and what judges it instead."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uncarried:
    """Ops that XLA:CPU is no judge of."""

    opcodes: str
    types: str
    why: str
    judged_by: str


_ELEMENTWISE = "`tests/runtime/kernels/elementwise/`: numpy in f64, edge tables"
_EVALUATE = "`tests/compiler/interpret/test_uncarried.py`: closed forms"

UNCARRIED: tuple[Uncarried, ...] = (
    Uncarried("`acos`, `acosh`, `asin`, `asinh`, `atanh`, `cosh`, `sinh`",
              "f16, f32, f64, c64, c128",
              "XLA:CPU does not implement them; bf16 and f8 it expands, and they are compared",
              _ELEMENTWISE),
    Uncarried("`mulhi`", "all", "StableHLO has no such op",
              "`tests/runtime/kernels/elementwise/test_integer_arithmetic.py`: Python's integers"),
    Uncarried("`stochastic-convert`", "all", "StableHLO has no such op",
              "`tests/runtime/kernels/elementwise/test_convert.py` and " + _EVALUATE),
    Uncarried("`bitcast` that changes sizes or layout", "all", "StableHLO has no such op",
              _EVALUATE),
    Uncarried("`scan`", "all", "StableHLO has no such op", _EVALUATE),
    Uncarried("`async-start`, `async-update`, `async-done`", "all",
              "the way back from StableHLO unwraps the result, which XLA's verifier refuses",
              _EVALUATE),
    Uncarried("`copy-start`, `copy-done`", "all", "XLA:CPU does not implement them", _EVALUATE),
    Uncarried("`all-reduce-start`, `all-gather-start`, `collective-permute-start`, `-done`",
              "all", "StableHLO has no such ops", "their synchronous forms; " + _EVALUATE),
    Uncarried("`fusion` of kind kInput, kOutput, kCustom, or with several results", "all",
              "XLA:CPU refuses them, or ends the process on the missing layout", _EVALUATE),
    Uncarried("`ragged-dot`, `scaled-dot`", "all", "the route refuses them",
              "`tests/runtime/kernels/contractions/test_dot.py`: plain dots, group by group"),
    Uncarried("`collective-broadcast`; `all-to-all` without groups", "all",
              "XLA:CPU does not implement them",
              "`tests/runtime/kernels/test_collectives.py`; `all-to-all` with groups is compared"),
    Uncarried("`domain`", "all", "StableHLO has no such op", _EVALUATE),
    Uncarried("`infeed`, `outfeed`, `send`, `recv`", "all", "they talk to a host program",
              "queues of the program that runs them"),
    Uncarried("`rng`, `rng-get-and-update-state`", "all",
              "XLA draws a new key for every compilation; ranges and moments are compared",
              "`tests/runtime/kernels/test_random.py`"),
    Uncarried("`concatenate`, `sort`, collectives", "s2, u2",
              "XLA:CPU ends the process, spoils its heap or hangs on packed two-bit integers",
              _EVALUATE),
    Uncarried("`dot` with a wider result", "s4 to s32", "XLA:CPU refuses its own convert",
              _EVALUATE),
    Uncarried("all", "s1, u1, f6e2m3fn, f6e3m2fn", "jaxlib's buffers do not hold them",
              "`tests/runtime/kernels/core/test_rounding.py`, `test_storage.py`: ml_dtypes"),
)  # fmt: skip
"""In the order of `docs/numerics-deviations.md`."""
