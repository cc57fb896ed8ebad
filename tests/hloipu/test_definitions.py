"""Custom calls that their user says the meaning of."""

from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_compiler.formulas.errors import FormulaError
from hloipu_runtime.errors import UnsupportedError, UsageError
from tests.support.command_line import run

X = np.arange(4, dtype=np.float32)
TEXT = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] custom-call(x), custom_call_target="scale"
  t = (f32[4], f32[4]) tuple(x, y)
  z = (f32[4], s32[2]) custom-call(t), custom_call_target="pair"
  a = f32[4] get-tuple-element(z), index=0
  b = s32[2] get-tuple-element(z), index=1
  ROOT r = (f32[4], s32[2], f32[4]) tuple(a, b, y)
}
"""
SCALE = """HloModule scale

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[4]{0} parameter(0)
  zero = f32[] constant(0)
  s = f32[] reduce(x, zero), dimensions={0}, to_apply=sum
  b = f32[4]{0} broadcast(s), dimensions={}
  ROOT m = f32[4]{0} multiply(x, b)
}
"""
PAIR = """HloModule pair

ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  c = s32[2] constant({7, 9})
  d = f32[4] subtract(y, x)
  ROOT r = (f32[4], s32[2]) tuple(d, c)
}
"""
WANTED = (6 * X - X, [7, 9], 6 * X)


def test_texts_files_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "pair.hlo"
    file.write_text(PAIR)

    def pair(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y - x, np.array([7, 9], np.int32)

    for second in (PAIR, str(file), file, pair):
        define = {"scale": SCALE, "pair": second}
        compiled = hloipu.compile(TEXT, define=define, cache=False).run(X).outputs
        for found in (compiled, hloipu.evaluate(TEXT, X, define=define)):
            for mine, wanted in zip(found, WANTED, strict=True):
                np.testing.assert_array_equal(mine, wanted)


def test_a_function_serves_calls_of_several_shapes() -> None:
    text = TEXT.replace("ENTRY e {", "ENTRY e {\n  w = f32[2] parameter(1)\n"
                        '  v = f32[2] custom-call(w), custom_call_target="scale"')  # fmt: skip
    define = {"scale": lambda x: x * x.sum(), "pair": PAIR}
    found = hloipu.evaluate(text, X, X[:2], define=define)
    np.testing.assert_array_equal(found[2], 6 * X)


def test_a_program_is_kept_for_its_definitions(tmp_path: Path) -> None:
    file = tmp_path / "scale.hlo"
    for text, factor in ((SCALE, 6), (SCALE.replace("multiply(x, b)", "add(b, b)"), 0)):
        file.write_text(text)
        define = {"scale": str(file), "pair": PAIR}
        made = hloipu.compile(TEXT, define=define, cache_dir=tmp_path / "cache").run(X).outputs
        np.testing.assert_array_equal(made[2], factor * X if factor else np.full(4, 12))


@pytest.mark.parametrize("command", ["run", "check", "eval", "estimate", "compile", "emit"])
def test_the_command_line_takes_files(command: str, tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(TEXT)
    for name, text in (("scale", SCALE), ("pair", PAIR)):
        (tmp_path / f"{name}.hlo").write_text(text)
    words = [f"--define={name}={tmp_path / name}.hlo" for name in ("scale", "pair")]
    more = {"run": ["--random", "0"], "eval": ["--random", "0"], "emit": ["--stage=program"],
            "compile": ["-o", str(tmp_path / "m.ipux")]}.get(command, [])  # fmt: skip
    outcome = run(command, str(module), *words, *more)
    assert outcome.code == 0, outcome.err
    without = run(command, str(module), *more)
    assert without.code != 0


def test_the_configuration_file_may_define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scale.hlo").write_text(SCALE)
    (tmp_path / "pair.hlo").write_text(PAIR)
    (tmp_path / "hloipu.toml").write_text(
        'cache = false\n[define]\nscale = "scale.hlo"\npair = "pair.hlo"\n'
    )
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(hloipu.compile(TEXT).run(X).outputs[2], 6 * X)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="'other'") as unknown:
        hloipu.compile(TEXT, define={"other": SCALE})
    assert unknown.value.code == "E0533"
    assert "pair, scale" in str(unknown.value)
    for wrong in (PAIR, SCALE.replace("f32[4]", "f32[5]"), SCALE.replace("f32[", "f16[")):
        with pytest.raises(FormulaError, match="takes") as caught:
            hloipu.compile(TEXT, define={"scale": wrong})
        assert (caught.value.code, caught.value.span.line) == ("E0532", 5)
    with pytest.raises(FormulaError, match="gives"):
        hloipu.compile(TEXT, define={"scale": SCALE.replace("ROOT m", "m").replace(
            "s = f32[] reduce", "ROOT s = f32[] reduce")})  # fmt: skip
    with pytest.raises(UsageError) as nothing:
        hloipu.compile(TEXT, define=[3])
    assert nothing.value.code == "E3011"


def test_an_unknown_call_comes_with_a_text_to_begin_with() -> None:
    define: dict[str, str] = {}
    for name in ("scale", "pair"):
        with pytest.raises(UnsupportedError, match=f"--define '{name}=FILE.hlo'") as caught:
            hloipu.compile(TEXT, define=define, cache=False)
        assert caught.value.code == "E0470"
        define[name] = str(caught.value)[str(caught.value).index("HloModule definition") :]
    for part in hloipu.compile(TEXT, define=define, cache=False).run(X).outputs:
        assert not part.any()
