"""Programs over eight devices: sharding annotations and explicit collectives."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tools.corpus.case import Case, array

P = PartitionSpec
DEVICES = 8


def cases() -> Iterator[Case]:
    """Yield sharded cases; none where fewer than eight devices are to be had."""
    if jax.device_count() < DEVICES:
        return
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    line = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    yield from _annotated(mesh)
    yield from _collectives(line)
    yield from _two_axes(mesh)


def _argument(mesh: Mesh, spec: PartitionSpec, dtype: str, *sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))


def _annotated(mesh: Mesh) -> Iterator[Case]:
    specs = (P("data"), P(None, "model"), P("data", "model"), P(("data", "model")), P())
    for number, left in enumerate(specs):
        for other, right in enumerate(specs):
            x, w = _argument(mesh, left, "float32", 16, 8), _argument(mesh, right, "float32", 8, 16)
            # P(("data", "model")) needs eight rows, which both have.
            yield Case(
                f"sharded_matmul_{number}_{other}",
                jnp.matmul,
                [x, w],
                optimise=(number + other) % 3 == 0,
            )
    x = _argument(mesh, P("data", "model"), "bfloat16", 16, 8)

    def constrained(x: Any) -> Any:
        y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P("model", None)))
        return lax.with_sharding_constraint(y.sum(0), NamedSharding(mesh, P()))

    yield Case("sharded_constraint", constrained, [x], optimise=True)
    yield Case(
        "sharded_out",
        jnp.tanh,
        [x],
        {"out_shardings": NamedSharding(mesh, P(None, "data"))},
        optimise=True,
    )
    for name, function in (
        ("sort", jnp.sort),
        ("cumsum", partial(jnp.cumsum, axis=1)),
        ("softmax", jax.nn.softmax),
        ("transpose", jnp.transpose),
        ("argmax", jnp.argmax),
        ("mean", jnp.mean),
        ("norm_grad", jax.grad(lambda x: (x * x).sum())),
    ):
        yield Case(f"sharded_{name}", function, [x], optimise=True)


def _collectives(mesh: Mesh) -> Iterator[Case]:
    shard = partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    ring = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    table: dict[str, Callable[..., Any]] = {
        "psum": lambda x: lax.psum(x, "x"),
        "pmax": lambda x: lax.pmax(x, "x"),
        "pmin": lambda x: lax.pmin(x, "x"),
        "pmean": lambda x: lax.pmean(x, "x"),
        "all_gather": lambda x: lax.all_gather(x, "x"),
        "all_gather_tiled": lambda x: lax.all_gather(x, "x", axis=1, tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True),
        "all_to_all_stacked": lambda x: lax.all_to_all(x, "x", 1, 1),
        "ppermute": lambda x: lax.ppermute(x, "x", ring),
        "ppermute_partial": lambda x: lax.ppermute(x, "x", ring[:3]),
        "pbroadcast": lambda x: lax.pbroadcast(x, "x", 2) if hasattr(lax, "pbroadcast") else x,
        "axis_index": lambda x: x + lax.axis_index("x"),
        "psum_groups": lambda x: lax.psum(x, "x", axis_index_groups=halves),
        "gather_groups": lambda x: lax.all_gather(x, "x", axis_index_groups=halves),
        "psum_pair": lambda x: lax.psum((x, x * 2), "x")[0],
        "psum_grad": jax.grad(lambda x: (lax.psum(x, "x") ** 2).sum()),
        "ring_loop": lambda x: lax.fori_loop(
            0, DEVICES, lambda i, y: lax.ppermute(y, "x", ring) + x, x
        ),
        "pargmax": lambda x: lax.pmax(jnp.argmax(x), "x") + x,
    }
    for name, function in table.items():
        for dtype in ("float32", "bfloat16", "int32"):
            if dtype == "int32" and name in ("psum_grad", "pmean"):
                continue
            x = _argument(mesh, P("x"), dtype, 16, 8)
            yield Case(f"{name}_{dtype}", shard(function), [x], optimise=dtype == "float32")


def _two_axes(mesh: Mesh) -> Iterator[Case]:
    both = partial(jax.shard_map, mesh=mesh, check_vma=False)
    x = _argument(mesh, P("data", "model"), "float32", 8, 8)

    def megatron(x: Any, first: Any, second: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ first) @ second, "model")

    tensor_parallel = both(
        megatron, in_specs=(P("data"), P(None, "model"), P("model")), out_specs=P("data")
    )
    yield Case(
        "tensor_parallel",
        tensor_parallel,
        [array("float32", 8, 16), array("float32", 16, 32), array("float32", 32, 16)],
        optimise=True,
    )
    loss = lambda *a: tensor_parallel(*a).sum()  # noqa: E731
    yield Case(
        "tensor_parallel_grad",
        jax.grad(loss, (1, 2)),
        [array("float32", 8, 16), array("float32", 16, 32), array("float32", 32, 16)],
        optimise=True,
    )
    for axes in ("data", "model", ("data", "model"), ("model", "data")):
        function = both(
            lambda x, a=axes: lax.psum(x, a),
            in_specs=P("data", "model"),
            out_specs=P("data", "model"),
        )
        name = axes if isinstance(axes, str) else "_".join(axes)
        yield Case(f"psum_over_{name}", function, [x], optimise=True)
        gather = both(
            lambda x, a=axes: lax.all_gather(x, a, tiled=True),
            in_specs=P("data", "model"),
            out_specs=P(),
        )
        yield Case(f"gather_over_{name}", gather, [x], optimise=True)
    partly = jax.shard_map(
        lambda x: lax.psum(x, "model"),
        mesh=mesh,
        in_specs=P(None, "model"),
        out_specs=P(),
        axis_names={"model"},
        check_vma=False,
    )
    yield Case("partly_manual", partly, [x])
