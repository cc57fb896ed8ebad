"""The option room imports nothing heavy: Python's face and the command line start with it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_room_is_light() -> None:
    heavy = ("click", "numpy", "lark", "networkx", "ml_dtypes")
    code = f"import sys, hloipu.options.resolve;print(*[m for m in {heavy} if m in sys.modules])"
    path = ":".join(str(ROOT / part) for part in ("", "compiler", "runtime"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
