"""Memory plans of compiled modules against the slow referee."""

from pathlib import Path

import pytest

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.machine.load import load_machine
from tests.support.memory_checker import check_memory

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
NAMES = (
    "attention cond_switch convnet_train_step embedding_grad mnist_train_step newton_while "
    "scan_rnn sort_topk"
).split()


@pytest.mark.parametrize("tiles", ["4", "7"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thinned(2)
def test_sample(name: str, tiles: str) -> None:
    machine = load_machine("tiny", {"tiles_per_ipu": tiles})
    module = parse((SAMPLES / f"{name}.hlo").read_text(encoding="utf-8"))
    check_memory(compile_module(module, CompileRequest(machine)).program, machine)
