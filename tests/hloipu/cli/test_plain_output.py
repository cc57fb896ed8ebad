"""Nothing that a module says drives the terminal or fakes a line of a command's output."""

import json
import re
from pathlib import Path

import pytest

from hloipu.cli import COMMANDS
from hloipu_runtime.plain_text import plain_hlo, plain_lines, plain_message, printable
from tests.support.command_line import run

FAKE = "fits: 0 of 0 bytes, faked"
EVIL = {
    "escaped": rf"\033[2J\033]0;title\007\n{FAKE}\n\r\010\302\233\342\200\256\177",
    "raw": "\x1b[2J\x1b]0;title\t\u009b31m\u202e\u2066\x7f\u200b",
    "bytes": r"\377\200\355\240\200\n" + FAKE,
}
DRIVING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

SAID = 'op_type="EVIL" op_name="EVIL" source_file="d/EVIL.py" source_line=3'
MODULE = f"""HloModule m, frontend_attributes={{a="EVIL"}}

ENTRY %e {{
  %p = f32[8,8] parameter(0), metadata={{{SAID}}}
  %c = f32[8,8] custom-call(%p), custom_call_target="TARGET", backend_config="EVIL"
  %d = f32[8,8] dot(%c, %p), lhs_contracting_dims={{1}},
    rhs_contracting_dims={{0}}, metadata={{{SAID}}}
  ROOT %x = f32[8,8] exponential(%d), frontend_attributes={{b="EVIL"}}, metadata={{{SAID}}}
}}
"""
CALLS: dict[str, list[list[str]]] = {
    "capture": [],
    "compile": [["--findings"], ["--json"]],
    "run": [["--random", "0"], ["--random", "0", "--json"],
            ["--random", "0", "--report", "/dev/null"]],
    "estimate": [[], ["--json"], ["--findings"], ["--chart"]],
    "sweep": [],
    "sweep-show": [],
    "advise": [[], ["--json"]],
    "verify": [[], ["--json"], ["--static"]],
    "show": [[], ["--json"], ["--tree"]],
    "eval": [["--random", "0"], ["--random", "0", "--json"]],
    "check": [["--against", "evaluator-f64"]],
    "targets": [],
    "opt": [[], ["--timing"]],
    "reduce": [["--test", "true"], ["--test", "false"]],
    "emit": [["--stage", "hlo"], *([f"--stage={stage}", f"--format={form}"]
             for stage in "hlo step shardings partitioned front plans program memory costs".split()
             for form in ("text", "json", "dot", "graphml", "node-link"))],
    "feed-bench": [[]],
    "report": [["-o", "/dev/null"]],
    "trace": [["-o", "/dev/null"]],
    "compare": [[]],
    "init": [],
    "explain": [[]],
    "completion": [],
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", EVIL)
def test_no_command_prints_controls(command: str, name: str, tmp_path: Path) -> None:
    for target in ("Sharding", EVIL[name]):
        path = tmp_path / "m.hlo"
        path.write_text(MODULE.replace("TARGET", target).replace("EVIL", EVIL[name]))
        for options in CALLS[command]:
            files = [str(path)] * 2 if command == "compare" else [str(path)]
            outcome = run(command, *files, *options)
            said = outcome.out + outcome.err
            assert not DRIVING.search(said), (options, said)
            assert not any(line.strip().startswith(FAKE) for line in said.splitlines()), said
            assert outcome.code in (0, 2, 3, 4, 5, 6, 7), said
            if outcome.out.startswith("{") and "--json" in options:
                json.loads(outcome.out)


def test_what_a_module_is_called_is_still_told(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(MODULE.replace("TARGET", "Sharding").replace("EVIL", EVIL["escaped"]))
    assert "?[2J?]0;title" in run("show", str(path)).out


@pytest.mark.parametrize("evil", EVIL.values())
def test_printed_modules_mean_the_same(evil: str, tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(MODULE.replace("TARGET", "Sharding").replace("EVIL", evil))
    once = run("emit", str(path), "--stage", "hlo")
    assert once.code == 0
    path.write_text(once.out)
    again = run("emit", str(path), "--stage", "hlo")
    assert again.out == once.out


def test_characters_are_written_out_as_their_reader_reads_them() -> None:
    text = "a\x1bb\u202ec\udc80d\U000e0041\te\nf"
    assert json.loads(f'"{plain_lines(text[:-4])}"') == text[:-4]
    assert plain_lines("a\tb\nc\u00a0\u00fc") == "a\tb\nc\u00a0\u00fc"
    assert plain_hlo("\x1b\u202e") == r"\033\342\200\256"
    assert printable("a\nb\tc\x1b") == "a?b c?"


def test_a_message_that_cannot_be_made_is_none() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise KeyError("no message")

    said = "BrokenError, whose message cannot be had: its __str__ raises"
    assert plain_message(BrokenError()) == said
    assert plain_message(ValueError("a\x1b\nb")) == "ValueError: a?"
