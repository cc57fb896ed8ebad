"""Checks the sharded module of a seed."""

import time
import traceback
from collections import Counter
from typing import NamedTuple

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.annotations import is_border
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.partition.spmd.partitioning import ready_to_divide
from hloipu_compiler.partition.spmd.reading import stated_shardings
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.kernels.core.storage import user_dtype
from tests.support.arrays import Array
from tests.support.blocks import check_on_devices, few_roundings
from tests.support.random_shardings import with_random_shardings
from tools.fuzz_programs.program import generate
from tools.fuzz_spmd.chain import Chain
from tools.fuzz_spmd.ops import OPS
from tools.fuzz_spmd.rare_ops import RARE_OPS
from tools.fuzz_spmd.wide_ops import WIDE_OPS

_NARROW = ("bf16", "f16", "f8e4m3fn", "f8e5m2")
"""Types in which values may be on the way, and whose roundings last."""
TOLERANCE = 2e-3
"""Sums of blocks are rounded in another order; values stay within a few hundred."""


def drawn(seed: int) -> tuple[Module, list[Array]]:
    """Return the sharded module of a seed, verified, and its arguments."""
    if seed % 2:
        module = parse(Chain(seed).text(OPS + WIDE_OPS + RARE_OPS))
        verify(module)
        draws = np.random.default_rng(seed)
        shapes = (module.entry.instructions[i].shape for i in module.entry.parameters)
        sizes = [x.dimensions for x in shapes]  # type: ignore[union-attr]
        return module, [draws.standard_normal(n).astype(np.float32) * 0.3 for n in sizes]
    program = generate(3, seed)
    module = parse(program.text)
    verify(module)
    draws = np.random.default_rng(seed)
    return with_random_shardings(module, draws, inside=0.2), program.arguments()


def check(seed: int) -> Module:
    """Return the program of one device for the module of a seed; AssertionError if it is wrong."""
    module, arguments = drawn(seed)
    is_by_device = any(is_border(x) for x in module.entry.instructions)
    partitions = stated_shardings(module).axes.device_count if is_by_device else 1
    expected = evaluate_participants(module, [arguments], partitions=partitions)[0]
    ops = (x for c in module.computations for x in c.instructions)
    kinds = {leaf.element_type.name for x in ops for leaf in leaves_of(x.shape)}
    narrowest = max((few_roundings(user_dtype(k)) for k in kinds if k in _NARROW), default=0.0)
    most = max(TOLERANCE, narrowest)
    return check_on_devices(ready_to_divide(module), arguments, expected, most)


class Outcome(NamedTuple):
    """What became of a module: the communication of its devices, or what was wrong."""

    seed: int
    meetings: Counter[str]
    wrong: str = ""


def judged(seed: int, seconds: float) -> Outcome:
    """Check the module of a seed, which may take so much processor time."""
    start = time.process_time()
    try:
        local = check(seed)
        spent = time.process_time() - start
        if spent > seconds:
            raise TimeoutError(f"{spent:.0f} s")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = " ".join(str(error).split())[:200]
        return Outcome(seed, Counter(), f"{type(error).__name__} {why} ({last.name}:{last.lineno})")
    entry = local.entry.instructions
    return Outcome(seed, Counter(x.opcode for x in entry if "channel_id" in x.attributes))
