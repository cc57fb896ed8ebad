"""Compiled samples as text and as files: they come back, with the same bytes in every process."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.analysis.source_lines import source_lines
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.executable import Executable, load
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays
from tests.support.program_reader.parser import parse_program
from tests.support.same_programs import assert_same

ROOT = Path(__file__).parents[2]
SAMPLES = ["attention", "cond_switch", "mnist_train_step", "newton_while", "scan_rnn", "sort_topk"]
TARGETS = ["tiny", "gc200"]


@cache
def compiled(sample: str, target: str) -> Executable:
    module = parse((ROOT / "hlo_samples" / f"{sample}.hlo").read_text(encoding="utf-8"))
    verify(module)
    machine = load_machine(target)
    return Executable(
        compile_module(module, CompileRequest(machine)).program,
        machine,
        sources=source_lines(module),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_compiled_program_comes_back_from_its_file(
    sample: str, target: str, tmp_path: Path
) -> None:
    executable = compiled(sample, target)
    executable.save(tmp_path / "m.ipux")
    found = load(tmp_path / "m.ipux")
    assert_same(found.program, executable.program)
    assert (found.machine, found.sources) == (executable.machine, executable.sources)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_compiled_program_comes_back_from_its_text(sample: str, target: str) -> None:
    program = compiled(sample, target).program
    text = print_program(program, constants=True)
    assert_same(parse_program(text), program)


def test_a_loaded_program_computes_the_same(tmp_path: Path) -> None:
    executable = compiled("mnist_train_step", "tiny")
    executable.save(tmp_path / "m.ipux")
    rng = np.random.default_rng(3)
    inputs = {
        port.stream: rng.integers(0, 3, port.shape).astype(storage_dtype(port.element_type))
        for port in executable.program.parameters
    }
    hosts = []
    for program in (executable.program, load(tmp_path / "m.ipux").program):
        hosts.append(Arrays(inputs))
        with np.errstate(all="ignore"):
            FunctionalEngine(program).run(hosts[-1])
    assert hosts[0].outputs.keys() == hosts[1].outputs.keys() != set()
    for stream, array in hosts[0].outputs.items():
        assert array.tobytes() == hosts[1].outputs[stream].tobytes()


WRITER = """
import hashlib, sys
from hloipu_runtime.program_io.frame.frame import encode_frame
from hloipu_runtime.executable import to_frame
from hloipu_runtime.program_io.text.printer import print_program
from tests.end_to_end.test_program_files import compiled
for sample in ("attention", "mnist_train_step", "sort_topk"):
    executable = compiled(sample, "gc200")
    digest = hashlib.sha256(b"".join(map(bytes, encode_frame(to_frame(executable)))))
    digest.update(print_program(executable.program).encode())
    print(sample, digest.hexdigest())
"""


def test_every_process_writes_the_same_bytes() -> None:
    path = ":".join(str(ROOT / part) for part in (".", "compiler", "runtime"))
    written = [
        subprocess.run(
            [sys.executable, "-c", WRITER],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    ]
    assert len(written[0].splitlines()) == 3
    assert written[0] == written[1] == written[2]
