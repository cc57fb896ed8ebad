"""Published networks as HLO text: small ones of each are read, compiled and computed right."""

import numpy as np
import pytest

import hloipu
from hloipu.initial_arrays import random_arrays
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.cases import each
from tests.support.xla_oracle import Oracle
from tools.fidelity import runs
from tools.fidelity.measurements import Measurement, read_measurements
from tools.models.__main__ import arguments_of, text_of
from tools.models.zoo import MODELS

_KINDS = [
    "resnet50",
    "efficientnet-b4-g16",
    "unet",
    "bert-base",
    "gpt2",
    "vit-b16",
    "vit-b16-pretrain",
]
"""One of each kind of network."""


@pytest.mark.thinned(12)
@pytest.mark.parametrize("model", _KINDS)
@pytest.mark.parametrize("more", ["", "--train"])
def test_a_small_one_fits(model: str, more: str) -> None:
    text = text_of(f"{model} --tiny --batch 2 {more}")
    assert faults_of(parse(text)) == []
    assert hloipu.compile(text, cache=False).fits


def test_values_are_those_of_xla(oracle: Oracle) -> None:
    """A training step: embedding, causal attention, tied head, momentum."""
    text = text_of("gpt2 --tiny --train --batch 2 --dtype f32 --optimizer sgd")
    program = hloipu.compile(text, cache=False)
    given = random_arrays(1, program.program, parse(text))
    arrays = [given[number] for number in sorted(given)]
    ours, theirs = program.run(*arrays).outputs, oracle.run(text, arrays)
    assert len(ours) == len(theirs) > 50
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


def test_text_has_names_donation_and_lines() -> None:
    text = text_of("vit-b16 --tiny --train --batch 2")
    assert "input_output_alias={ {0}: (0, {}, may-alias)" in text
    assert '"tools/models/transformers.py"' in text
    assert 'op_name="jit(step)/jvp(Vit)/layer_0/attention/qkv/dot_general"' in text
    assert "site-packages" not in text


def test_ways_to_write_it() -> None:
    plain = text_of("gpt2 --tiny --train")
    scanned = text_of("gpt2 --tiny --train --layers scanned")
    again = text_of("gpt2 --tiny --train --remat blocks --dropout 0.1")
    assert " while(" in scanned
    assert " while(" not in plain
    assert again.count(" dot(") > plain.count(" dot(") > scanned.count(" dot(")
    assert "rng-bit-generator" in again
    assert "rng-bit-generator" not in plain


def test_stages_are_annotated() -> None:
    """The embedding goes with the first stage, the head with the last, which has no layers."""
    text = text_of("gpt2 --tiny --train --stages 1,1,0")
    lines = [line for line in text.splitlines() if "ipu_stage=" in line]
    stages = {n: [x for x in lines if f'ipu_stage="{n}"' in x] for n in (0, 1, 2)}
    assert sum(map(len, stages.values())) == len(lines)
    assert any("jvp(Gpt2)/words" in x for x in stages[0])
    assert any("jvp(Gpt2)/layer_1" in x for x in stages[1])
    assert any("transpose(jvp(Gpt2))/layer_1" in x for x in stages[1])
    assert any("jvp(Gpt2)/norm" in x for x in stages[2])
    assert not any("/layer_" in x for x in stages[2])


@each("run", runs.read_runs().values())
def test_every_run_is_of_a_network(run: runs.Run) -> None:
    assert run.source
    assert arguments_of(run.network).model in MODELS


def test_every_measured_run_is_there() -> None:
    measured = [x for x in read_measurements() if x.run]
    assert {x.run for x in measured} <= set(runs.read_runs())
    assert all(x.samples and x.unit.endswith("/s") for x in measured)


@pytest.mark.large
def test_what_is_said_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    network = "bert-base --tiny --train --batch 2 --stages 1,1,0"
    options = {"micro_batches": 4, "recompute": "none"}
    monkeypatch.setattr(runs, "read_runs", lambda: {"tiny": runs.Run("tiny", network, options, "")})
    x = Measurement("x", "bow", "", "", 1.0, "sequences/s", "", "", run="tiny", samples=8)
    said = runs.outcome(x)
    assert said.fits
    parts = dict(said.parts)
    kept = parts.pop(runs.HOISTED)
    assert 0 < kept <= parts["exchange buffers"]
    assert sum(parts.values()) == said.peak_bytes
    assert runs.rate(x).value == 8 / said.device_seconds
