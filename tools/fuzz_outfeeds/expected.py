"""What outfeeds give, by numpy: the step is trained here, elements are chosen and added up here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import user_dtype
from tools.fuzz_outfeeds.case import RATE, TYPED, Case, Outfeed

Array = np.ndarray[Any, Any]
START = (np.array([0.5, 0.75, 1.0, 1.25]), np.array([1.0, 0.5, 1.5, 0.25]))


def trained(case: Case, fed: dict[str, Any]) -> dict[int, Array]:
    """Return what each result is: [micro-batch or update, replica, …], over all calls.

    Micro-batch m of an update takes the elements m R to m R + R - 1 of the update's, one for each
    of R replicas; weights change by the mean of the slopes of all of them.
    """
    replicas, micro_batches = case.replicas, case.micro_batches
    x = fed["x"].astype(np.float64).reshape(-1, micro_batches, replicas, 4)
    w, v = START
    losses, hiddens, sizes, weights = [], [], [], []
    for batch in x:
        hidden = batch * w
        off = hidden * v - batch
        losses.append((off * off).sum(-1))
        hiddens.append(hidden)
        new_w = w - RATE * (off * v * batch).mean((0, 1))
        v = v - RATE * (off * hidden).mean((0, 1))
        w = new_w
        weights.append(np.broadcast_to(w, (replicas, 4)))
        sizes.append(np.full(replicas, w.sum()))
    rows = fed["rows"].reshape(-1, replicas, 2, 3)
    changed = ~rows if case.element_type == "pred" else rows + rows
    return {
        2: np.concatenate(losses),
        3: np.concatenate(hiddens),
        4: rows,
        5: changed.astype(rows.dtype),
        6: fed["one"].reshape(-1, replicas),
        7: np.stack(sizes),
        8: np.stack(weights),
    }


def outfed(
    outfeed: Outfeed, results: dict[int, Array], calls: Sequence[int], kind: str
) -> list[list[Array]]:
    """Return, for each element of a queue, its arrays; replicas are their first axis.

    `calls`: runs of the program in each call of `Session.run`; `kind`: the drawn element type.
    """
    columns = [
        _column(outfeed.mode, results[n], calls, kind if n in TYPED else "f32")
        for n in outfeed.places
    ]
    return [list(element) for element in zip(*columns, strict=True)]


def _column(mode: str, elements: Array, counts: Sequence[int], kind: str) -> Sequence[Array]:
    """Return what a mode makes of one result, whose elements of all runs are given."""
    runs = np.split(elements, sum(counts))
    if mode in ("sum", "mean"):
        return [_reduced(run, mode, kind) for run in runs]
    calls, begun = [], 0
    for count in counts:
        calls.append(np.concatenate(runs[begun : begun + count]))
        begun += count
    if mode == "first":
        kept = [call[0] for call in calls]
    elif mode == "last":
        kept = [call[-1] for call in calls]
    elif mode == "all":
        kept = list(elements)
    else:
        step = int(mode.removeprefix("every-"))
        kept = list(elements[step - 1 :: step])
    return [each.astype(user_dtype(kind)) for each in kept]


def _reduced(run: Array, mode: str, kind: str) -> Array:
    """Return a sum in the type itself, or f32 where that is a narrow float; a mean of it.

    Means of whole numbers are f32; what is added up for them is too.
    """
    element, dtype = ELEMENT_TYPES[kind], user_dtype(kind)
    total: Array
    if element.is_integer and mode == "sum":
        total = run.astype(np.int64).sum(0)
        if element.bits >= 8:
            return total.astype(dtype)
        low = 0 if kind.startswith("u") else 2 ** (element.bits - 1)
        total = (total + low) % 2**element.bits - low
        return total.astype(dtype)
    wide: Any = np.complex128 if kind == "c64" else np.float64
    total = run.astype(wide).sum(0) if mode == "sum" else run.astype(wide).mean(0)
    narrow = element.is_integer or element.bits < 32
    return total.astype(np.float32 if narrow else dtype)
