"""What a row of the table of op classes is made of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from tools.bench.codegen.kernel import array
from tools.bench.codegen.limits import Needs
from tools.fidelity.vertex_formulas import PoplibsEstimate

TILES = 1472


@dataclass(frozen=True, slots=True)
class OpClass:
    """One class at one size."""

    name: str
    size: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: Needs
    """Of loads, stores, products and exchanged bytes."""
    float_slots: float = 0
    """Bundles with a float op that all elements together need at least."""
    poplibs: PoplibsEstimate | None = None
    """What poplibs estimates for a tile; None: it has no estimate of this op."""


def tile(count: int) -> int:
    """Return the share of the fullest tile."""
    return -(-count // TILES)


def op_class(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    slots: float = 0,
    products: int = 0,
    exchanged: int = 0,
    poplibs: PoplibsEstimate | None = None,
) -> OpClass:
    """Return a class whose operands are loaded once and whose results are stored once."""
    largest = max(arguments, key=lambda x: prod(x.shape))
    kind = "f32" if largest.dtype.name == "float32" else "f16"
    results = jax.tree.leaves(jax.eval_shape(function, *arguments))
    needs = Needs(products, kind, _bytes(arguments), _bytes(results), exchanged)
    size = f"{short(largest.dtype)} {'x'.join(map(str, largest.shape))}"
    return OpClass(name, size, function, arguments, needs, slots, poplibs)


def _bytes(values: Iterable[Any]) -> int:
    return sum(prod(x.shape) * x.dtype.itemsize for x in values)


def short(dtype: Any) -> str:
    """Return a type's name as HLO has it."""
    names = {"bool": "pred", "uint8": "u8", "int32": "s32", "uint32": "u32"}
    name = dtype.name
    return names.get(name) or str(name).replace("bfloat", "bf").replace("float", "f")


def gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the gradients of the first `count` operands, from that of the result, the last."""

    def gradients(*arguments: Any) -> Any:
        *given, upstream = arguments
        _, back = jax.vjp(function, *given)
        return back(upstream)[:count]

    return gradients


def like(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return an abstract array like the result of a function."""
    result = jax.eval_shape(function, *arguments)
    return array(result.dtype, *result.shape)
