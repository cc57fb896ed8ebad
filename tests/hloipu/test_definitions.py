"""Custom calls that their user says the meaning of."""

import json
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_compiler.formulas.call import FormulaError
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
        np.testing.assert_array_equal(made[2], factor * X if factor else np.full(4, 12.0))


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
        hloipu.compile(TEXT, define=[3])  # type: ignore[arg-type]
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


def test_an_estimate_takes_cycles_for_a_call(tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(TEXT)
    cycles = []
    for stated in (1_000_000, 3_000_000):
        words = (str(module), f"--define=scale={tmp_path / 'scale.hlo'}", f"--opaque=pair={stated}")
        (tmp_path / "scale.hlo").write_text(SCALE)
        outcome = run("estimate", *words, "--json", "--no-cache")
        assert outcome.code == 0, outcome.err
        cycles.append(json.loads(outcome.out)["total_cycles"])
        assert f"{stated:,} a call of pair as stated" in run("estimate", *words).out
    assert 2_000_000 <= cycles[1] - cycles[0] <= 2_010_000
    assert cycles[0] > 1_000_000


LOOP = """HloModule m

body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  c = (c64[2], pred[3], bf16[4]) custom-call(x, i), custom_call_target="work"
  y = bf16[4] get-tuple-element(c), index=2
  z = f32[4] convert(y)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT n = (s32[], f32[4]) tuple(j, z)
}

goes {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(10)
  ROOT l = pred[] compare(i, n), direction=LT
}

ENTRY e {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[4]) tuple(zero, x)
  ROOT w = (s32[], f32[4]) while(t), condition=goes, body=body
}
"""


def test_cycles_count_for_each_turn_and_results_are_of_any_type(tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(LOOP)
    found = [
        json.loads(run("estimate", str(module), f"--opaque=work={n}", "--json").out)["total_cycles"]
        for n in (0, 50_000)
    ]
    # A call of no cycles runs beside other work, which is what the others then run beside.
    assert 0.99 * 10 * 50_000 <= found[1] - found[0] <= 10 * 50_000


def test_cycles_are_for_estimates_alone(tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(TEXT)
    for command in ("run", "compile", "check"):
        assert "--opaque" in run(command, str(module), "--opaque=pair=5").err
    with pytest.raises(UsageError):
        hloipu.compile(TEXT, opaque={"pair": 5})  # type: ignore[call-arg]
    both = run("estimate", str(module), f"--define=pair={module}", "--opaque=pair=5")
    assert "E3012" in both.err
    unknown = run("estimate", str(module), "--opaque=other=5")
    assert "E0533" in unknown.err
    for wrong in ("pair", "pair=-1", "pair=x"):
        assert run("estimate", str(module), f"--opaque={wrong}").code == 2
