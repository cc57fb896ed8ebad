"""The scripts of docs/frontends.md, each with the framework's own training beside it.

Skipped where a framework is not installed: `make newcomer` runs them with all.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu.lowered_steps import LoweredStep, with_aliases, with_names
from hloipu_compiler.analysis.summary import summarise
from hloipu_runtime.errors import UsageError

ROOT = Path(__file__).parents[2]
_SCRIPTS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/frontends.md").read_text(), re.DOTALL)
_BATCHES = "[(images[n : n + 32], labels[n : n + 32]) for n in range(0, 256, 32)] * 2"
# What the framework itself does from the same start, before it is given what was trained here.
_CHECKS = {
    "jax": f"""
losses, own = [], weights
for x, y in {_BATCHES}:
    own, loss = train_step(own, x, y)
    losses.append(float(loss))
STEP_ASSIGN
own = {{name: np.asarray(value) for name, value in own.items()}}
trainer.state = weights
predicted = expected = np.zeros(1)
""",
    "tensorflow": f"""
losses = [float(train_step(tf.constant(x), tf.constant(y))) for x, y in {_BATCHES}]
own = {{v.path: v.numpy() for v in (*model.variables, *optimizer.variables)}}
predicted = trainer.predict(images)
STEP_ASSIGN
expected = model(images, training=False).numpy()
""",
    "torch": f"""
losses, device = [], torch_xla.device()
for x, y in {_BATCHES}:
    loss = train_step(torch.as_tensor(x).to(device), torch.as_tensor(y).to(device))
    torch_xla.sync()
    losses.append(loss.item())
own = {{name: x.detach().cpu().numpy() for name, x in model.named_parameters()}}
predicted = trainer.predict(images)
STEP_ASSIGN
expected = model(torch.as_tensor(images).to(device)).detach().cpu().numpy()
""",
}
_JUDGE = """
np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-4)
np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
assert np.abs(np.subtract(losses[-1], losses[0])) > 0.01
for name, value in own.items():
    if name in trainer.state:
        np.testing.assert_allclose(trainer.state[name], value, rtol=1e-3, atol=1e-4)
assert own.keys() & trainer.state.keys()
assert "script.py" in hloipu.verify(step.text).stack_tables + step.text
"""


@pytest.mark.parametrize(("number", "name"), [*enumerate(_CHECKS)])
def test_scripts_of_the_page_train_as_the_framework_does(
    number: int, name: str, tmp_path: Path
) -> None:
    module = {"torch": "torch_xla"}.get(name, name)
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'hloipu[{name}]'")
    *before, last = _SCRIPTS[number].rstrip().splitlines(keepends=True)
    check = _CHECKS[name].replace("STEP_ASSIGN", last)
    (tmp_path / "script.py").write_text("".join(before) + check + _JUDGE, encoding="utf-8")
    path = os.pathsep.join(map(str, (ROOT, ROOT / "compiler", ROOT / "runtime")))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


_STEP = """HloModule step, entry_computation_layout={(f32[2], f32[], f32[2])->(f32[], f32[2])}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY e {
  p0 = f32[2]{0} parameter(0), metadata={op_name="XLA_Args" source_file="ops.py" source_line=1}
  p1 = f32[] parameter(1)
  p2 = f32[2]{0} parameter(2), sharding={replicated}, metadata={op_name="XLA_Args"}
  rate = f32[2] broadcast(p1), dimensions={}
  change = f32[2] multiply(rate, p0)
  next = f32[2] subtract(p2, change)
  zero = f32[] constant(0)
  loss = f32[] reduce(next, zero), dimensions={0}, to_apply=add
  ROOT out = (f32[], f32[2]) tuple(loss, next)
}
"""


def test_a_step_says_names_and_what_is_state_and_trains() -> None:
    names = ("x", "rate", 'dense/"w"')
    text = with_aliases(with_names(_STEP, names), {1: 2})
    rows = summarise(hloipu.parse(text)).parameters
    assert [(row.path, row.role) for row in rows] == [
        ("x", ""), ("rate", ""), ('dense/"w"', "state"),
    ]  # fmt: skip
    x, rate, w = np.ones((6, 2), "f"), np.float32(0.5), np.array([3, 4], "f")
    step = LoweredStep(text, names, (x[0], np.asarray(rate), w), (0,), (2,), lambda state: None)
    assert step.constants == {1: rate}
    trainer = step.trainer(metrics=["loss"], target="tiny", over_memory="allow", cache=False)
    history = trainer.fit(list(x), epochs=1, progress=False)
    np.testing.assert_allclose(history.steps["loss"], 7.0 - np.arange(1, 7))


@pytest.mark.parametrize("name", ["tensorflow", "torch_xla"])
def test_a_framework_that_is_not_there_is_named(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(UsageError, match="is not installed") as error:
        importlib.import_module(f"hloipu.{name}")
    assert error.value.code == "E3174"
