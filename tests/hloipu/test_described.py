"""What programs say of themselves: ports by name, short reprs, inert tables, bytes as JAX's."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
import hloipu.jax
from hloipu.options.keywords import CompileOptions
from hloipu.options.table import OPTIONS
from tools.make_options import ROOT, keywords

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
TEXT = """HloModule m
ENTRY e {
  first = f32[2,3] parameter(0)
  pair = (f32[2,3], bf16[4]) parameter(1)
  second = f32[2,3] get-tuple-element(pair), index=0
  third = bf16[4] get-tuple-element(pair), index=1
  d = f32[2,3] subtract(first, second)
  ROOT r = (f32[2,3], bf16[4]) tuple(d, third)
}
"""


def compiled(text: str = TEXT, **options: Any) -> hloipu.CompiledProgram:
    return hloipu.compile(text, target="tiny", cache=False, over_memory="allow", **options)


def test_ports_have_the_names_of_the_module(tmp_path: Path) -> None:
    program = compiled()
    assert [tuple(x)[:5] for x in program.inputs] == [
        ("first", (2, 3), np.float32, "argument", 0),
        ("pair[0]", (2, 3), np.float32, "argument", 1),
        ("pair[1]", (4,), jnp.bfloat16, "argument", 2),
    ]
    assert [(x.name, x.shape, x.role) for x in program.outputs] == [
        ("result.0", (2, 3), "result"),
        ("result.1", (4,), "result"),
    ]
    program.save(tmp_path / "m.ipux")
    assert hloipu.load(tmp_path / "m.ipux").inputs == program.inputs


def test_ports_of_a_loop_say_what_is_state_and_what_is_fed() -> None:
    program = hloipu.compile(
        SAMPLES / "mnist_train_step.hlo", loop=3, feed={"batch": [4, 5]}, cache=False
    )
    roles = {x.number: (x.role, x.queue) for x in program.inputs}
    assert roles == dict.fromkeys(range(4), ("state", "")) | dict.fromkeys(
        (4, 5), ("feed", "batch")
    ), program.inputs
    assert next(x.name for x in program.inputs) == "variables['params']['Dense_0']['bias']"
    assert [x.role for x in program.outputs].count("state") == 4


def test_a_dictionary_gives_arrays_by_name_or_number() -> None:
    program = compiled()
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 3, np.float32)
    c = np.arange(4).astype(jnp.bfloat16)
    by_place = program.run(a, b, c).outputs
    for given in ({"pair[0]": b, "pair[1]": c, "first": a}, {2: c, "first": a, "parameter.1": b}):
        for x, y in zip(program.run(given).outputs, by_place, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
    wrong: tuple[dict[Any, Any], ...] = (
        {"first": a, "pair[0]": b}, {"first": a, 0: a, 1: b, 2: c}, {"x": a}, {(): a}, {},
    )  # fmt: skip
    for given in wrong:
        with pytest.raises(hloipu.HloipuError) as told:
            program.run(given)
        assert told.value.code == "E3154"


def test_a_parameter_is_had_by_its_name() -> None:
    entry = hloipu.parse(TEXT).entry
    assert entry.parameter("first").parameter_number == entry.parameter("%first").parameter_number
    with pytest.raises(KeyError, match="first, pair"):
        entry.parameter("third")


def test_reprs_are_short_however_large_a_model_is() -> None:
    module = hloipu.parse(SAMPLES / "convnet_train_step.hlo")
    program = hloipu.compile(SAMPLES / "scanned_blocks_train_step.hlo", over_memory="allow")
    small = compiled(TEXT.replace("HloModule m", f"HloModule {'m' * 5000}"))
    result = small.run(*(np.zeros(x.shape, x.dtype) for x in small.inputs))
    for each in (module, module.entry, program, program.program, small, result):
        assert len(repr(each)) < 2000, type(each)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a'b<img src=x>"])
def test_tables_of_notebooks_are_inert(name: str) -> None:
    module = hloipu.parse(TEXT)
    evil = module.__class__(name, module.computations, module.entry_position)
    for text in (evil._repr_html_(), compiled()._repr_html_()):
        assert "<script" not in text
        assert "<img" not in text
    assert "fullest tile" in compiled()._repr_html_()


def test_memory_is_told_by_the_keys_of_jax() -> None:
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return w - 0.1 * x.T @ (x @ w), (x @ w).sum()

    w, x = np.ones((8, 8), np.float32), np.ones((4, 8), np.float32)
    jitted = jax.jit(step, donate_argnums=0)
    wanted = jitted.lower(w, x).compile().memory_analysis()
    found = hloipu.jax.compile(step, w, x, donate=0).memory_analysis()
    assert found["argument_size_in_bytes"] == wanted.argument_size_in_bytes
    assert found["alias_size_in_bytes"] == wanted.alias_size_in_bytes
    pointers = 2 * 8  # of a tuple of two, which are arrays of XLA:CPU too
    assert found["output_size_in_bytes"] == wanted.output_size_in_bytes - pointers
    assert found["temp_size_in_bytes"] > 0
    assert found["peak_bytes_per_tile"] <= found["available_bytes_per_tile"]


def test_keywords_are_those_of_the_table() -> None:
    written = ROOT.joinpath("hloipu/options/keywords.py").read_text("utf-8")
    declared = CompileOptions.__annotations__
    assert set(declared) == {n for n, row in OPTIONS.items() if "compile" in row.about.commands}
    # The formatter breaks lines: what remains is the same.
    assert "".join(written.split()).replace(",)", ")") == "".join(keywords().split()).replace(
        ",)", ")"
    )
