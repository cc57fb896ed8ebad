"""A new user's first minutes with each framework, on a fresh environment, and ten models of it.

    python -m tools.newcomer [jax tensorflow torch] [--room DIR] [--no-models]

Commands and scripts are those of docs/frontends.md: install, capture a script, compile what
was captured, lower a step and train it. Timed from `pip install` to the verdict that names lines of
the script. `--room` keeps the environments and uses those that are there.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("jax", "tensorflow", "torch")
_LOOPS = {
    "jax": "    weights, loss = train_step(weights, images[:32], labels[:32])",
    "tensorflow": "    loss = train_step(images[:32], labels[:32])",
    "torch": "    batch = images[:32], labels[:32]\n"
    "    x, y = (torch.as_tensor(each).to(torch_xla.device()) for each in batch)\n"
    "    loss = train_step(x, y).detach()\n    torch_xla.sync()",
}
"""How the scripts' own training goes, without hloipu."""
_NEXT = re.compile(r"^next: hloipu compile (.*)$", re.MULTILINE)


def main() -> int:
    """Run the tours; return 1 where one fails, or a model does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="*", default=[], choices=[*FRAMEWORKS, []])
    parser.add_argument("--room", type=Path)
    parser.add_argument("--no-models", action="store_true")
    asked = parser.parse_args()
    failed = False
    for name in asked.frameworks or FRAMEWORKS:
        with tempfile.TemporaryDirectory(prefix="hloipu-newcomer-") as fresh:
            try:
                _tour(name, (asked.room or Path(fresh)) / name, models=not asked.no_models)
            except (subprocess.CalledProcessError, AssertionError) as error:
                failed = True
                print(f"{name}: FAILED: {error}\n{getattr(error, 'stdout', '')}", flush=True)
    return int(failed)


def _tour(name: str, room: Path, *, models: bool) -> None:
    print(f"== {name}", flush=True)
    room.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    binaries = room / "venv" / "bin"
    if not binaries.exists():
        _run([sys.executable, "-m", "venv", str(room / "venv")], room)
        _run([str(binaries / "pip"), "install", "--quiet", f"{ROOT}[{name}]"], room)
    installed = time.monotonic()
    print(f"pip install 'hloipu[{name}]': {(installed - start) / 60:.1f} min", flush=True)
    script = _script(name)
    plain = [line for line in script.splitlines() if "hloipu" not in line.split("#")[0]]
    own = "\n".join(plain[: plain.index("train_step_ends_here")])
    (room / "train.py").write_text(f"{own}\n\nfor _ in range(3):\n{_LOOPS[name]}\nprint(loss)\n")
    (room / "step.py").write_text(
        script.replace("train_step_ends_here\n", "")
        + '\nopen("step.hlo", "w").write(step.text)\nprint(history.steps["loss"][-1])\n'
    )
    python, hloipu = str(binaries / "python"), str(binaries / "hloipu")
    captured = _run([hloipu, "capture", "-o", "dumps", "--", python, "train.py"], room)
    print(captured.strip(), flush=True)
    match = _NEXT.search(captured)
    assert match, "capture names nothing to go on with"
    _run([hloipu, "compile", match[1]], room)
    _run([python, "step.py"], room)
    verdict = _run([hloipu, "compile", "step.hlo"], room)
    print(verdict.strip(), flush=True)
    assert "step.py:" in verdict, "the verdict names no line of the script"
    end = time.monotonic()
    minutes = f"{(end - start) / 60:.1f} min, {(end - installed) / 60:.1f} without the installation"
    print(f"{name}: a verdict with lines after {minutes}", flush=True)
    if models:
        print(_run([python, "-m", f"tools.newcomer.models_{name}"], ROOT).strip(), flush=True)


def _script(name: str) -> str:
    """Return the page's script of a framework, with a mark where hloipu begins."""
    page = (ROOT / "docs" / "frontends.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[FRAMEWORKS.index(name)]
    return str(script).replace("\nstep = ", "\ntrain_step_ends_here\nstep = ", 1)


def _run(command: list[str], folder: Path) -> str:
    """Run a command as a user does; return what it prints, without the frameworks' own logs."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "PJRT_DEVICE": "CPU"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines(keepends=True)
    return "".join(x for x in lines if not re.match(r"[IWE]\d{4} |WARNING: All log", x))


if __name__ == "__main__":
    sys.exit(main())
