"""Every cure that is printed for what does not fit fits when the command line does it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hloipu.advice.trials import flags
from tests.hloipu.advice.test_fitting import ROWS
from tests.support.command_line import run

SAMPLES = Path(__file__).parents[3] / "hlo_samples"


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def text_of(function: Callable[..., Any], *shapes: Any, donate: tuple[int, ...] = ()) -> str:
    lowered = jax.jit(function, donate_argnums=donate).lower(*shapes)
    return str(lowered.compiler_ir("hlo").as_hlo_text())


def layers(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def descent(weights: Any, x: Any, y: Any) -> Any:
    value, gradients = jax.value_and_grad(lambda w: ((layers(w, x) - y) ** 2).mean())(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def attention(w: Any, x: Any) -> Any:
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    return x + jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v @ w[3]


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.hlo").read_text(encoding="utf-8")


SQUARE = floats(64, 64)
BATCH = floats(8, 64)
MANY = floats(256, 64)
MODELS: dict[str, tuple[Callable[[], str], int, str]] = {
    "a step of training": (
        lambda: text_of(descent, [SQUARE] * 4, BATCH, BATCH, donate=(0,)), 36864, "needs 2 IPUs",
    ),
    "a large batch": (
        lambda: text_of(descent, [SQUARE] * 2, MANY, MANY, donate=(0,)), 65536, "--micro-batches",
    ),
    "layers": (lambda: text_of(layers, [SQUARE] * 6, BATCH), 10240, "does not exist"),
    "embedding_grad": (lambda: sample("embedding_grad"), 65536, "use float16 in the model"),
    "a product": (
        lambda: text_of(jnp.matmul, floats(128, 256), floats(256, 16)), 24576, "batch of the model",
    ),
    "rows": (lambda: ROWS, 65536, "make the batch of the model 4 times smaller"),
    "attention": (lambda: text_of(attention, [SQUARE] * 4, floats(8, 32, 64)), 83968, "needs 8"),
    "scan_rnn": (lambda: sample("scan_rnn"), 14336, "use float16 in the model"),
    "attention sample": (lambda: sample("attention"), 24576, "batch of the model 2 times smaller"),
}  # fmt: skip
"""A model, bytes of each tile, and words of a cure that is found."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.thinned(3)
def test_every_cure_fits_when_the_command_line_does_it(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloipu.api._UNNOTICED_SECONDS", 1e9)  # whatever the machine's load is
    text, size, words = MODELS[model]
    memory = [f"--set={name}={size}" for name in ("bytes_per_tile", "executable_bytes")]
    command = ["compile", "-", "--target", "tiny", "--no-cache"]
    hlo = text()
    profile = tmp_path / "profile.json"
    said = run(*command, *memory, "--profile", str(profile), stdin=hlo)
    assert said.code == 5
    lines = [x for x in said.out.splitlines() if x.startswith(("needs ", "would fit", "more IPUs"))]
    assert any(words in line for line in lines)
    # How many IPUs comes first, a machine that does not exist only where there is nothing else.
    assert lines[0].startswith(("needs ", "more IPUs"))
    assert len(lines) <= 2 or "does not exist" not in said.out
    found = json.loads(profile.read_text())["fitting"]["found"]
    assert found
    for change in found:
        assert any(change["text"] in line for line in lines)
        settings = {**change["settings"]}
        if "set" in settings:
            settings["set"] = [tuple(pair) for pair in settings["set"]]
        asked = flags(settings).split()
        assert {x for x in change["text"].split() if x.startswith("--")} <= {*asked, "--set"}
        machine = [] if "set" in settings else memory  # the text says what it replaces
        again = run(*command, *machine, *asked, "--json", stdin=hlo)
        assert again.code == 0, change["text"]
        record = json.loads(again.out)
        assert record["memory"]["peak"]["total_bytes"] == change["peak_bytes"]
        used = record["machine"]
        assert used["ipus"] * used["replicas"] == change["ipus"]
