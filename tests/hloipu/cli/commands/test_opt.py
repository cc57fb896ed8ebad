"""`hloipu opt`: pipelines from the command line, what they print, and passes from a file."""

import json
import re
from pathlib import Path

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.passes import passes
from hloipu_compiler.source import Source
from tests.support.command_line import Outcome, run

ROOT = Path(__file__).resolve().parents[4]
SAMPLE = str(ROOT / "hlo_samples" / "scan_rnn.hlo")
TEXT = """HloModule m

ENTRY e {
  p = f32[2] parameter(0)
  c = f32[2] copy(p)
  ROOT r = f32[2] negate(c)
}
"""


def opt(*options: str, text: str = TEXT) -> Outcome:
    return run("opt", "-", *options, stdin=text)


def opcodes(text: str) -> list[str]:
    return [x.opcode for x in parse(Source(text)).entry.instructions]


def test_a_pipeline_prints_the_module() -> None:
    outcome = opt("--passes", "simplify-algebra")
    assert (outcome.code, outcome.err) == (0, "")
    assert opcodes(outcome.out) == ["parameter", "negate"]


def test_the_result_can_be_written_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out.hlo"
    outcome = run("opt", SAMPLE, "-o", str(file))
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert "call" not in opcodes(file.read_text())
    assert run("verify", str(file)).code == 0


def test_timing_has_a_line_for_each_run() -> None:
    outcome = opt("--timing")
    lines = outcome.err.splitlines()
    assert lines[0].split() == [
        "pass",
        "round",
        "ms",
        "verify",
        "ms",
        "instructions",
        "computations",
    ]
    assert lines[1].startswith("expand-bitcasts ")
    assert re.fullmatch(r"total +[\d.]+ +[\d.]+ +3 -> 2 +1 -> 1", lines[-1])


def test_dumps_and_differences() -> None:
    outcome = opt("--passes", "simplify-algebra", "--diff-after", "simplify-algebra")
    changed = [line for line in outcome.err.splitlines() if line[:1] in "+-"]
    assert "-  %c = f32[2] copy(%p)" in changed
    assert "+  ROOT %r = f32[2] negate(%p)" in changed
    dumped = opt("--passes", "front", "--dump-after", "inline-calls").err
    assert dumped.startswith("// after inline-calls\nHloModule m")
    assert opcodes(dumped.partition("\n")[2]) == ["parameter", "copy", "negate"]


def test_stopping_after_a_pass() -> None:
    outcome = opt("--stop-after", "inline-calls")
    assert opcodes(outcome.out) == ["parameter", "copy", "negate"]


def test_the_plan_as_json() -> None:
    outcome = run("opt", SAMPLE, "--plan")
    record = json.loads(outcome.err)
    assert record["schema"] == "hloipu.plan/1"
    assert [loop["trips"] for loop in record["trip_counts"]] == [20]


def test_the_list_names_every_pass_and_pipeline() -> None:
    outcome = run("opt", "--list-passes")
    assert outcome.code == 0
    for one in passes():
        assert f"{one.name}: {one.help_text()}" in outcome.out
    assert "    {max-elements=1024}" in outcome.out
    assert (
        "\nfront: pipeline\n    expand-bitcasts,inline-calls,make-synchronous,expand-borders,("
        in outcome.out
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--passes", "inline-call"), "E3131"),
        (("--passes", "a,,b"), "E3131"),
        (("--passes", "front,,front"), "E3133"),
        (("--passes", "fold-constants{x=1}"), "E3134"),
        (("--stop-after", "inline-call"), "E3135"),
        (("--dump-after", "inline-call"), "E3135"),
        (("--diff-after", "inline-call"), "E3135"),
        (("--plugin", "no such file.py"), "E3136"),
        (("--plugin", __file__.replace(".py", ".txt")), "E3136"),
    ],
)
def test_mistakes_are_told(options: tuple[str, ...], code: str) -> None:
    outcome = opt(*options)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error[{code}]: ")


def test_wrong_hlo_is_refused_before_any_pass() -> None:
    outcome = opt(text=TEXT.replace("negate(c)", "negate(c, c)"))
    assert outcome.code == 3


def documented() -> str:
    page = (ROOT / "docs" / "writing-a-pass.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


SQUARES = """HloModule m

ENTRY e {
  p = f32[2] parameter(0)
  m = f32[2] multiply(p, p)
  ROOT r = f32[2] sqrt(m)
}
"""


def test_the_documented_plugin_runs(tmp_path: Path) -> None:
    file = tmp_path / "square_root_of_square.py"
    file.write_text(documented(), encoding="utf-8")
    plugin = ("--plugin", str(file), "--passes")
    name = "square-root-of-square"
    outcome = opt(*plugin, f"{name},eliminate-dead-code", text=SQUARES)
    assert (outcome.code, outcome.err) == (0, "")
    assert opcodes(outcome.out) == ["parameter", "abs"]
    outcome = opt(*plugin, f"{name}{{enabled=false}}", text=SQUARES)
    assert opcodes(outcome.out) == ["parameter", "multiply", "sqrt"]
    listed = run("opt", "--plugin", str(file), "--list-passes").out
    assert (
        f"{name}: Replaces sqrt(x * x) by |x|, which does not overflow.\n    {{enabled=true}}"
        in listed
    )
    assert name not in {one.name for one in passes()}


def test_a_plugin_that_breaks_the_module_is_named(tmp_path: Path) -> None:
    file = tmp_path / "breaking.py"
    file.write_text(documented().replace('opcode="abs"', 'opcode="is-finite"'), encoding="utf-8")
    outcome = opt("--plugin", str(file), "--passes", "square-root-of-square", text=SQUARES)
    assert outcome.code == 1
    assert "error[E9001]" in outcome.err
    assert "after the pass square-root-of-square" in outcome.err


MUTE = """
class MuteError(Exception):
    def __str__(self):
        raise RuntimeError

"""


def test_a_pass_that_raises_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "raising.py"
    text = documented().replace("return with_each(", "raise MuteError\n        with_each(")
    file.write_text(text + MUTE, encoding="utf-8")
    outcome = opt("--plugin", str(file), "--passes", "square-root-of-square", text=SQUARES)
    assert (outcome.code, outcome.err[:13]) == (2, "error[E3137]:")
    assert "MuteError" in outcome.err
    line = next(n for n, x in enumerate(text.splitlines(), 1) if "raise MuteError" in x)
    assert f"at line {line}\n" in outcome.err


@pytest.mark.parametrize(
    "text", ["x = 1\n", "x = \n", "import no_such_module\n", "1 / 0\n", f"{MUTE}raise MuteError\n"]
)
def test_files_that_are_no_plugins(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.py"
    file.write_text(text)
    outcome = opt("--plugin", str(file))
    assert (outcome.code, outcome.err[:13]) == (2, "error[E3136]:")
