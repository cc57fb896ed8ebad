"""Metrics of the trainer and outfeeds of the command line, against what numpy makes of them."""

import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from click.testing import CliRunner

from hloipu.cli.application import application
from hloipu.training.trainer import Trainer
from hloipu_runtime.errors import HloipuError
from tools.fuzz_outfeeds.case import EACH_MICRO_BATCH, Case, Outfeed
from tools.fuzz_outfeeds.expected import START, outfed, trained
from tools.fuzz_outfeeds.judge import RELATIVE, Verdict

METRICS = {"loss": 2, "hidden": 3, "rows": 4, "size": 7}
EPOCHS = 2
_TAKEN_BY_COMMANDS = ("all", "last", "first", "every-3", "sum", "mean")


def judged_trainer(case: Case) -> Verdict:
    """Train, evaluate and predict with a case's step; return which metrics differ.

    A step's metric is the mean over its micro-batches and replicas, an epoch's that over its steps.
    """
    kind = "f32" if case.element_type == "c64" else case.element_type  # no metric is complex
    case = replace(case, loop=min(case.loop, 12), element_type=kind)
    results = trained(case, case.fed())
    state = [x.astype(np.float32) for x in START]
    steps = sum(case.calls) * case.loop // EPOCHS
    cut = {k: v for k, v in case.options.items() if k not in ("loop", "feed")}
    forward = re.sub(r"(?s)HloModule.*?add \{", "HloModule forward\nadd {", case.text, count=1)
    loss = re.sub(r"(?s)ROOT all.*?\n\}", "ROOT l = (f32[]) tuple(loss)\n}", forward)
    guess = re.sub(r"(?s)ROOT all.*?\n\}", "ROOT g = (f32[4]) tuple(guess)\n}", forward)
    try:
        trainer = Trainer(
            case.text, state=state, feeds={"data": (2, 3, 4)}, metrics=METRICS, evaluation=loss,
            prediction=guess, mode=case.mode, target="tiny", over_memory="allow", cache=False,
            **cut,
        )  # fmt: skip
        fed = case.fed()
        elements = list(zip(fed["x"], fed["rows"], fed["one"], strict=True))
        evaluated = trainer.evaluate(iter(elements), steps=5)
        predicted = trainer.predict(iter(elements), steps=5)
        history = trainer.fit(
            elements, EPOCHS, steps_per_epoch=steps, steps_per_execution=steps, progress=False
        )
    except HloipuError as error:
        return Verdict(case, 0, (f"{error.code}: {error}",))
    w, v = START
    x = fed["x"][:5].astype(np.float64)
    pairs: list[tuple[str, Any, Any]] = [
        ("evaluated", evaluated["loss"], ((x * w * v - x) ** 2).sum(-1).mean()),
        ("predicted", predicted, x * w * v),
    ]
    for name, place in METRICS.items():
        per_step = case.micro_batches if place in EACH_MICRO_BATCH else 1
        each = results[place].astype(np.float64)[: EPOCHS * steps * per_step]
        wanted = each.reshape(EPOCHS * steps, -1).mean(-1)
        pairs.append((f"steps of {name}", history.steps[name], wanted))
        pairs.append((f"epochs of {name}", history.history[name], wanted.reshape(2, -1).mean(-1)))
    return Verdict(case, len(pairs), _faults(pairs))


def judged_command(case: Case) -> Verdict:
    """Run a case by `hloipu run`, a queue of each mode; return which files differ."""
    kind = "f16" if case.element_type == "f8e5m2" else case.element_type  # numpy cannot save it
    case = replace(case, loop=min(case.loop, 12), element_type=kind)
    outfeeds = [Outfeed(mode.partition("-")[0], mode, (2,)) for mode in _TAKEN_BY_COMMANDS]
    results = trained(case, case.fed())
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "step.hlo").write_text(case.text)
        np.savez(place / "fed.npz", **case.fed())
        w, v = (x.astype(np.float32) for x in START)
        np.savez(place / "state.npz", v=v, w=w)
        said = ["run", str(place / "step.hlo"), "--target", "tiny", "--over-memory", "allow"]
        said += ["--inputs", str(place / "state.npz"), "--infeed", f"data={place / 'fed.npz'}"]
        said += ["--mode", case.mode, "--feed", "data=2,3,4", "--no-cache"]
        said += ["--steps", str(sum(case.calls) * case.loop)]
        for key, value in case.options.items():
            if key != "feed":
                said += ["--" + key.replace("_", "-"), str(value)]
        for outfeed in outfeeds:
            said += ["--outfeed", outfeed.text()]
            said += ["--outfeed-to", f"{outfeed.name}={place / outfeed.name}.npz"]
        ran = CliRunner().invoke(application, said, catch_exceptions=True)
        if ran.exit_code:
            return Verdict(case, 0, (f"exit code {ran.exit_code}: {ran.output} {ran.exception}",))
        pairs = []
        for outfeed in outfeeds:
            with np.load(place / f"{outfeed.name}.npz") as file:
                written = file[outfeed.name]
            elements = outfed(outfeed, results, (sum(case.calls),), "f32")
            wanted = np.stack([x if case.replicas > 1 else x[0] for (x,) in elements])
            pairs.append((outfeed.text(), written, wanted))
    return Verdict(case, len(pairs), _faults(pairs))


def _faults(pairs: list[tuple[str, Any, Any]]) -> tuple[str, ...]:
    faults = []
    for name, given, expected in pairs:
        ours, wanted = np.asarray(given), np.asarray(expected)
        if ours.shape != wanted.shape or ours.dtype not in (wanted.dtype, np.float32):
            faults.append(f"{name} is {ours.dtype}{ours.shape}, not {wanted.dtype}{wanted.shape}")
        elif not np.allclose(ours, wanted, RELATIVE, 1e-6):
            faults.append(f"{name} is {ours}, expected is {wanted}")
    return tuple(faults)
