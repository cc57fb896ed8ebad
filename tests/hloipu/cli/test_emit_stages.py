"""`hloipu emit --stage`: the module after the passes, its program, its memory, its costs."""

import json
from pathlib import Path

import networkx as nx
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.plain_text import plain_lines
from hloipu_runtime.program_io.text.printer import print_program
from tests.support.command_line import run
from tests.support.program_reader.parser import parse_program
from tests.support.tile_texts import DOT, TOO_LARGE

TINY = ("--target", "tiny")
CALLING = """HloModule m

f {
  x = f32[4]{0} parameter(0)
  ROOT n = f32[4]{0} negate(x)
}

ENTRY e {
  p = f32[4]{0} parameter(0)
  ROOT c = f32[4]{0} call(p), to_apply=f
}
"""


def emit(text: str, stage: str, *options: str) -> str:
    outcome = run("emit", "-", "--stage", stage, *options, stdin=text)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def test_the_front_is_after_the_passes() -> None:
    assert "call(" in emit(CALLING, "hlo")
    made = emit(CALLING, "front")
    assert [x.opcode for x in parse(made).entry.instructions] == ["parameter", "negate"]
    assert json.loads(emit(CALLING, "front", "--format", "json"))
    assert emit(CALLING, "front", "--format", "dot").startswith("digraph")
    kept = emit(CALLING, "front", "--passes", "expand-bitcasts")
    assert "call(" in kept


def test_graphs_of_networkx_give_the_module_back(tmp_path: Path) -> None:
    # A character that XML has not, one that its readers change, and a line end of Unicode.
    text = CALLING.replace("to_apply=f", 'to_apply=f, metadata={op_name="\x1b\rx\u2028"}')
    for stage in ("hlo", "step", "front"):
        printed = emit(text, stage)
        path = tmp_path / f"{stage}.graphml"
        path.write_text(emit(text, stage, "--format", "graphml"), encoding="utf-8")
        link = nx.node_link_graph(json.loads(emit(text, stage, "--format", "node-link")))
        assert plain_lines(print_module(Module.from_networkx(link))) == printed
        graph = nx.read_graphml(path)
        back = print_module(Module.from_networkx(graph))
        assert (
            plain_lines(back.replace(r"\033", "\x1b").replace(r"\342\200\250", "\u2028")) == printed
        )
    outcome = run("emit", "-", "--stage", "memory", "--format", "graphml", stdin=CALLING)
    assert (outcome.code, "E3145" in outcome.err) == (2, True)


def test_the_program_reads_back() -> None:
    text = emit(DOT, "program", *TINY)
    assert text.startswith('program "dot" for "tiny" ipus 1\n')
    assert print_program(parse_program(text)) == text


def test_the_memory_adds_up() -> None:
    record = json.loads(emit(DOT, "memory", *TINY, "--format", "json"))
    assert record["schema"] == "hloipu.memory"
    assert sum(record["peak"]["parts"].values()) == record["peak"]["total_bytes"]
    assert sum(one["tiles"] for one in record["histogram"]) == 4
    text = emit(DOT, "memory", *TINY)
    assert text.startswith("fits: tile ")
    total = f"{record['peak']['total_bytes']:,}"
    assert f"total {total} {record['total_bytes']:,}" in " ".join(text.split())
    assert "\ntensor " in text


def test_the_memory_of_what_does_not_fit() -> None:
    text = emit(TOO_LARGE, "memory", *TINY)
    assert text.startswith("does NOT fit: ")
    assert "more than there is" in text
    assert "model.py:7" in text


def test_the_costs_add_up() -> None:
    record = json.loads(emit(DOT, "costs", *TINY, "--format", "json"))
    assert record["schema"] == "hloipu.costs/1"
    assert record["other_cycles"] == 0
    assert sum(step["cycles"] for step in record["steps"]) == record["total_cycles"]
    dearest = json.loads(emit(DOT, "costs", *TINY, "--format", "json", "--most-rows", "2"))
    cycles = sorted((step["cycles"] for step in record["steps"]), reverse=True)
    assert [step["cycles"] for step in dearest["steps"]] == cycles[:2]
    assert dearest["other_cycles"] == sum(cycles[2:])
    lines = emit(DOT, "costs", *TINY, "--most-rows", "2").splitlines()
    assert len(lines) == 5
    assert lines[0].split()[:4] == ["step", "kind", "instruction", "codelet"]
    assert lines[-1].split() == ["total", f"{record['total_cycles']:,}"]


def test_an_executable_has_stages_too(tmp_path: Path) -> None:
    file = str(tmp_path / "m.ipux")
    assert run("compile", "-", *TINY, "-o", file, stdin=DOT).code == 0
    for stage in ("program", "memory", "costs"):
        outcome = run("emit", file, "--stage", stage)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == emit(DOT, stage, *TINY)
    outcome = run("emit", file)
    assert (outcome.code, outcome.err[:12]) == (2, "error[E3002]")


@pytest.mark.parametrize(
    ("stage", "form"),
    [("program", "json"), ("program", "dot"), ("memory", "dot"), ("costs", "dot")],
)
def test_forms_that_a_stage_has_not(stage: str, form: str) -> None:
    outcome = run("emit", "-", "--stage", stage, "--format", form, stdin=DOT)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error[E3145]: ")
