"""Programs with shardings on a mesh of 8, as JAX lowers them and as XLA's partitioners divide them.

Run in a child process, since the number of virtual devices is fixed when JAX starts: prints JSON,
one object for each program, with its text and the shardings of its results after propagation.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
Program = tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], P | None], ...]]


def constrained(x: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def mlp(x: Any, a: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ a) @ b


def mlp_step(x: Any, a: Any, b: Any) -> Any:
    return jax.value_and_grad(lambda w: (mlp(x, *w) ** 2).mean())((a, b))


def layer_norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    queries, keys, values = (jnp.einsum("bsd,dhe->bhse", x, w) for w in (q, k, v))
    weights = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", queries, keys), -1)
    return jnp.einsum("bhst,bhte,hed->bsd", weights, values, o)


def scanned(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum(-1)), x, ws)


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 5, lambda i, h: jnp.sin(h) + i, x)


def branched(p: Any, x: Any) -> Any:
    return jax.lax.cond(p.sum() > 0, jnp.sin, lambda y: y * 2, x)


def middle(x: Any, y: Any) -> Any:
    return constrained(x + y, "data", None).T @ constrained(x * y, "data", "model")


def embedded(table: Any, w: Any) -> Any:
    return table[jnp.arange(16) * 2 % 32] @ w


def convolved(x: Any, w: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)


def reshaped(x: Any) -> Any:
    return x.reshape(8, 4, 16).transpose(2, 0, 1)


def mapped(x: Any, w: Any) -> Any:
    def inside(a: Any, b: Any) -> Any:
        return jax.lax.psum(a @ b, "model")

    specs = (P("data", "model"), P("model", None))
    inner = jax.shard_map(inside, mesh=MESH, in_specs=specs, out_specs=P("data", None))
    return jnp.sin(inner(x * 2, w)) + 1


def unlike(x: Any, y: Any) -> Any:
    return x + y


def whole(x: Any) -> Any:
    return jnp.sort(x, axis=0), jnp.cumsum(x, 1), jnp.concatenate([x, x], 1), x[:, 2:9], x[::-1]


PROGRAMS: dict[str, Program] = {
    "mlp": (mlp, (((16, 32), P("data")), ((32, 64), P(None, "model")), ((64, 32), P("model")))),
    "mlp_step": (
        mlp_step,
        (((16, 32), P("data")), ((32, 64), P(None, "model")), ((64, 32), P("model"))),
    ),
    "data_parallel": (mlp_step, (((16, 32), P("data")), ((32, 64), P()), ((64, 32), P()))),
    "layer_norm": (layer_norm, (((16, 32), P("data", "model")), ((32,), None))),
    "attention": (
        attention,
        (((4, 16, 32), P("data")), *[((32, 8, 4), P(None, "model"))] * 3, ((8, 4, 32), P("model"))),
    ),
    "scanned": (scanned, (((16, 32), P("data")), ((6, 32, 32), P(None, None, "model")))),
    "looped": (looped, (((16, 32), P("data", "model")),)),
    "branched": (branched, (((16,), P("data")), ((16, 32), P("model")))),
    "middle": (middle, (((16, 32), None), ((16, 32), None))),
    "embedded": (embedded, (((32, 16), P(None, "model")), ((16, 64), P()))),
    "convolved": (
        convolved,
        (((4, 8, 8, 16), P("data")), ((3, 3, 16, 32), P(None, None, None, "model"))),
    ),
    "reshaped": (reshaped, (((32, 16), P(("data", "model"))),)),
    "mapped": (mapped, (((16, 32), P("data", "model")), ((32, 8), P("model")))),
    "unlike": (unlike, (((16, 32), P("data")), ((16, 32), P("model", "data")))),
    "whole": (whole, (((16, 32), P("data", "model")),)),
    "crossed": (lambda x, w: x @ w, (((64, 64), P("model")), ((64, 64), P(None, "model")))),
}  # fmt: skip


def lowered(name: str) -> dict[str, Any]:
    function, given = PROGRAMS[name]
    arguments = [
        jax.ShapeDtypeStruct(
            shape, jnp.float32, sharding=None if spec is None else NamedSharding(MESH, spec)
        )
        for shape, spec in given
    ]
    made = jax.jit(function).lower(*arguments)
    compiled = made.compile()
    outputs = jax.tree.leaves(compiled.output_shardings)
    results = jax.tree.leaves(made.out_info)
    shardings = [
        str(sharding._to_xla_hlo_sharding(len(result.shape)))
        for sharding, result in zip(outputs, results, strict=True)
    ]
    placed = [
        jax.device_put(array, sharding)
        for array, sharding in zip(
            arguments_of(name), jax.tree.leaves(compiled.input_shardings), strict=True
        )
    ]
    values = [np.asarray(value).ravel().tolist() for value in jax.tree.leaves(compiled(*placed))]
    text = made.as_text(dialect="hlo")
    return {"name": name, "text": text, "results": shardings, "values": values}


def arguments_of(name: str) -> list[Any]:
    """Return what a program is run on."""
    draws = np.random.default_rng(len(name))
    return [draws.standard_normal(shape).astype(np.float32) for shape, _ in PROGRAMS[name][1]]


def main() -> None:
    for dialect in sys.argv[1:]:
        jax.config.update("jax_use_shardy_partitioner", dialect == "shardy")
        for name in PROGRAMS:
            print(json.dumps({"dialect": dialect, **lowered(name)}), flush=True)


if __name__ == "__main__":
    main()
