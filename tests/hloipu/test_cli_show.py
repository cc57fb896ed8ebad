"""`hloipu show`, `emit` and `explain`: what they print, and that totals are sums of their parts."""

import json
from pathlib import Path
from typing import Any

import pytest

import hloipu
from tests.support.command_line import run

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "hlo_samples").glob("*.hlo"))
WORK = ("flops", "transcendentals", "bytes_read", "bytes_written")


def shown(path: Path | str, *options: str, stdin: str = "") -> dict[str, Any]:
    outcome = run("show", str(path), "--json", *options, stdin=stdin)
    assert (outcome.code, outcome.err) == (0, "")
    record: dict[str, Any] = json.loads(outcome.out)
    return record


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_totals_are_the_sums_of_their_parts(path: Path) -> None:
    record, module = shown(path, "--most", "100000"), hloipu.parse(path)
    assert record["schema"] == "hloipu.show/1"
    for kind in WORK:
        parts = sum(op["work_at_least"][kind] for op in record["ops"])
        assert record["lower_bound"][kind] == parts
        if record["total"] is not None:
            assert record["total"][kind] == parts
    assert record["instructions"] == module.instruction_count
    assert record["computations"] == len(module.computations)
    assert len(record["parameters"]) == len(module.entry.parameters)
    assert [p["number"] for p in record["parameters"]] == list(range(len(record["parameters"])))


def test_numbers_of_a_program_counted_by_hand() -> None:
    text = """HloModule m
ENTRY e {
  a = f32[8,16] parameter(0)
  b = f32[16,4] parameter(1)
  c = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[8,4] exponential(c)
  ROOT r = f32[8,4] add(d, d)
}
"""
    record = shown("-", stdin=text)
    work = {op["opcode"]: op["work_at_least"] for op in record["ops"]}
    assert work["dot"]["flops"] == 2 * 8 * 4 * 16
    assert work["add"]["flops"] == work["exponential"]["transcendentals"] == 32
    assert record["total"]["flops"] == 2 * 8 * 4 * 16 + 32
    assert record["output_bytes"] == 8 * 4 * 4
    assert [p["bytes"] for p in record["parameters"]] == [8 * 16 * 4, 16 * 4 * 4]


def test_loops_that_data_ends_have_no_total() -> None:
    path = next(p for p in SAMPLES if p.stem == "newton_while")
    record = shown(path)
    assert record["total"] is None
    (loop,) = record["unknown_loops"]
    ten, eleven = (shown(path, "--assume-trips", n) for n in ("10", "11"))
    for kind in WORK:
        step = eleven["lower_bound"][kind] - ten["lower_bound"][kind]
        assert step == loop["work_per_trip"][kind]


def test_text_has_the_same_numbers() -> None:
    outcome = run("show", str(SAMPLES[0]))
    assert (outcome.code, outcome.err) == (0, "")
    record = shown(SAMPLES[0])
    head = outcome.out.splitlines()[0]
    assert head.startswith(f"{record['module']}: {record['instructions']} instructions in")
    for op in record["ops"]:
        assert any(line.split()[:1] == [op["opcode"]] for line in outcome.out.splitlines())


@pytest.mark.parametrize("most", ["0", "1", "3"])
def test_lists_are_as_long_as_asked(most: str) -> None:
    record = shown(SAMPLES[0], "--most", most)
    assert len(record["largest_tensors"]) <= int(most)
    assert len(record["source_lines"]) <= int(most)
    sizes = [row["bytes"] for row in record["largest_tensors"]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_what_emit_prints_is_the_same_module(path: Path) -> None:
    before = hloipu.verify(path)
    for form in ("full", "short"):
        text = run("emit", str(path), "--form", form).out
        again = hloipu.verify(text)
        assert again.instruction_count == before.instruction_count
        assert run("emit", "-", "--form", form, stdin=text).out == text
    canonical = run("emit", str(path), "--form", "canonical").out
    assert run("emit", "-", "--form", "canonical", stdin=canonical).out == canonical


def test_emit_as_json_and_dot() -> None:
    path = SAMPLES[0]
    record = json.loads(run("emit", str(path), "--format", "json").out)
    assert isinstance(record, dict)
    assert hloipu.parse(path).name in json.dumps(record)
    dot = run("emit", str(path), "--format", "dot").out
    assert dot.startswith("digraph")
    assert dot.count("{") == dot.count("}")


def test_explain() -> None:
    one = run("explain", "e3001")
    assert one.code == 0
    assert one.out.startswith("E3001: ")
    assert "What to do: " in one.out
    record = json.loads(run("explain", "E3001", "--json").out)
    assert record["schema"] == "hloipu.explain/1"
    assert set(record) == {"schema", "code", "title", "meaning", "example", "cure"}
    every = run("explain").out.splitlines()
    codes = json.loads(run("explain", "--json").out)["codes"]
    assert len(every) == len(codes) > 50
    assert [line.split("  ")[0] for line in every] == list(codes)


def test_an_unknown_code_names_the_nearest() -> None:
    outcome = run("explain", "E30011")
    assert outcome.code == 2
    assert "did you mean" in outcome.err
    assert "E3001" in outcome.err
    assert "lists them all" in run("explain", "banana").err


@pytest.mark.parametrize("command", ["verify", "show", "emit", "eval"])
def test_standard_input(command: str) -> None:
    text = "HloModule m\nENTRY e {\n  ROOT c = s32[] constant(7)\n}\n"
    outcome = run(command, "-", stdin=text)
    assert (outcome.code, outcome.err) == (0, "")
    bad = run(command, "-", stdin=text.replace("s32[]", "s32["))
    assert bad.code == 3
    assert "<stdin>:3:" in bad.err


def test_verify_as_json() -> None:
    text = "HloModule m\nENTRY e {\n  ROOT c = s32[] constant(7)\n}\n"
    record = json.loads(run("verify", "-", "--json", stdin=text).out)
    assert record == {
        "schema": "hloipu.verify/1",
        "files": [
            {"file": "-", "ok": True, "module": "m", "instructions": 1, "computations": 1}
        ],
    }  # fmt: skip
