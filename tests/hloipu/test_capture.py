"""`hloipu capture`: what a script and its processes compile, ranked; folders, ends of scripts."""

import json
import sys
from pathlib import Path

import pytest

import hloipu
from hloipu.capturing import capture
from hloipu_runtime.errors import UsageError
from tests.support.command_line import run

# Stands for XLA: writes modules as XLA does, numbered from 0 in each process, where the flags say.
DUMPER = """
import os, re, sys
count = 0
def compiled(name, size, extra=""):
    global count
    folder = re.findall("--xla_dump_to=([^ ]*)", os.environ["XLA_FLAGS"])[-1]
    os.makedirs(folder, exist_ok=True)
    for stage in ("before_optimizations", "cpu_after_optimizations"):
        with open(f"{folder}/module_{count:04}.{name}.{stage}.txt", "w") as file:
            file.write(f'''HloModule {name}
ENTRY e {{
  a = f32[{size},{size}] parameter(0)
  ROOT d = f32[{size},{size}] add(a, a){extra}
}}
''')
    count += 1
"""
JAX_SCRIPT = """
import jax, numpy, sys
table = numpy.arange(400, dtype=numpy.float32).reshape(20, 20)
@jax.jit
def step(weights, batch):
    return jax.value_and_grad(lambda w: ((batch @ w + table) ** 2).sum())(weights)
step(table, table)
jax.jit(lambda x: x + 1)(table)
"""


def script(folder: Path, *lines: str, name: str = "train.py") -> list[str]:
    file = folder / name
    file.write_text("\n".join([DUMPER, *lines]), encoding="utf-8")
    return [sys.executable, str(file)]


def test_a_training_step_of_jax_comes_first_with_lines_and_constants(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JAX_SCRIPT, encoding="utf-8")
    captured = capture([sys.executable, str(tmp_path / "train.py")], tmp_path / "dumps")
    first = captured.modules[0]
    assert (first.file, first.framework, first.kind) == ("jit_step.hlo", "JAX", "training step")
    assert first.parameters == 2
    assert not first.elided
    module = hloipu.verify(tmp_path / "dumps" / first.file)
    assert "train.py" in module.stack_tables
    assert {m.name for m in captured.modules} >= {"jit_step", "jit__lambda"}


def test_the_most_work_leads_and_the_last_text_of_a_name_is_kept(tmp_path: Path) -> None:
    last = """', metadata={op_name="last"}'"""
    line = f'compiled("step", 8); compiled("small", 2); compiled("step", 8, {last})'
    outcome = run("capture", "-o", str(tmp_path / "dumps"), "--", *script(tmp_path, line))
    assert (outcome.code, outcome.err) == (0, "")
    assert f"most work: {tmp_path}/dumps/step.hlo" in outcome.out
    index = json.loads((tmp_path / "dumps" / "capture.json").read_bytes())
    assert [(m["file"], m["compiled"], m["flops"]) for m in index["modules"]] == [
        ("step.hlo", 2, 8**2),
        ("small.hlo", 1, 2**2),
    ]
    assert "last" in (tmp_path / "dumps" / "step.hlo").read_text()
    assert sorted(p.name for p in (tmp_path / "dumps").iterdir()) == [
        "capture.json",
        "small.hlo",
        "step.hlo",
    ]


STEP_OF_TENSORFLOW = "a_inference_step_51__XlaMustCompile_true_config_proto_1_executor_type_2_.9"
BACKWARD = """', metadata={op_name="gradient_tape/a"}'"""


@pytest.mark.parametrize(
    ("compiled", "chosen"),
    [
        # A larger batch in evaluation; names of TensorFlow's functions.
        (f'compiled("all", 6); compiled("{STEP_OF_TENSORFLOW}", 4, {BACKWARD})', "step.hlo"),
        (f'compiled("work", 60); compiled("small", 4, {BACKWARD})', "work.hlo"),
        # PyTorch's first step makes the optimizer's state.
        (
            f'compiled("a", 4, {BACKWARD}); '
            f'compiled("b, input_output_alias={{{{}}: (0, {{}}, may-alias)}}", 4, {BACKWARD})',
            "b_input_output_alias_0_may-alias_.hlo",
        ),
    ],
)
def test_the_training_step_is_what_to_go_on_with(
    tmp_path: Path, compiled: str, chosen: str
) -> None:
    captured = capture(script(tmp_path, compiled), tmp_path / "dumps")
    assert captured.chosen.file == chosen


def test_processes_that_a_script_starts_are_captured_too(tmp_path: Path) -> None:
    worker = script(tmp_path, 'compiled("worker", 4)', name="worker.py")
    lines = ('compiled("main", 8)', f"import subprocess; subprocess.run({worker!r}, check=True)")
    captured = capture(script(tmp_path, *lines), tmp_path / "dumps")
    assert [m.name for m in captured.modules] == ["main", "worker"]


def test_signatures_of_one_name_are_apart(tmp_path: Path) -> None:
    text = (
        'compiled("step", 8); compiled("step, entry_computation_layout={(f32[4,4])->f32[4,4]}", 4)'
    )
    captured = capture(script(tmp_path, text), tmp_path / "dumps")
    assert len({m.file for m in captured.modules}) == 2


def test_flags_and_a_sitecustomize_of_the_user_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = '8'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_mine={1}")
    lines = (
        'assert "--xla_of_mine={1} " in os.environ["XLA_FLAGS"]',
        'compiled("step", os.environ["SEEN"])',
    )
    captured = capture(script(tmp_path, *lines), tmp_path / "dumps")
    assert captured.exit_code == 0
    assert captured.modules[0].flops == 8**2


def test_a_script_that_fails_ends_the_command_so_and_what_it_compiled_is_kept(
    tmp_path: Path,
) -> None:
    command = script(tmp_path, 'compiled("step", 4)', "sys.exit(7)")
    outcome = run("capture", "-o", str(tmp_path / "dumps"), "--", *command)
    assert outcome.code == 7
    assert "ended with exit code 7" in outcome.out
    assert (tmp_path / "dumps" / "step.hlo").is_file()


def test_a_script_without_end_is_stopped(tmp_path: Path) -> None:
    command = script(tmp_path, 'compiled("step", 4)', "import time; time.sleep(600)")
    captured = capture(command, tmp_path / "dumps", seconds=2)
    assert captured.exit_code == 128 + 15
    assert [m.file for m in captured.modules] == ["step.hlo"]


def test_text_that_cannot_be_read_is_listed_last_with_the_reason(tmp_path: Path) -> None:
    command = script(tmp_path, 'compiled("bad", "x"); compiled("good", 4)')
    outcome = run("capture", "-o", str(tmp_path / "dumps"), "--", *command)
    assert outcome.code == 0
    assert outcome.out.index("good.hlo") < outcome.out.index("bad.hlo")
    assert "bad.hlo: not read: E01" in outcome.out


def test_an_earlier_capture_is_replaced_only_by_a_new_one(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    capture(script(tmp_path, 'compiled("first", 4)'), dumps)
    with pytest.raises(UsageError) as nothing:
        capture([sys.executable, "-c", "pass"], dumps)
    assert nothing.value.code == "E3212"
    assert (dumps / "first.hlo").is_file()
    capture(script(tmp_path, 'compiled("second", 4)'), dumps)
    assert sorted(p.name for p in dumps.iterdir()) == ["capture.json", "second.hlo"]


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    outcome = run("capture", "-o", str(tmp_path), "--", sys.executable, "-c", "pass")
    assert outcome.code == 2
    assert "E3211" in outcome.err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
