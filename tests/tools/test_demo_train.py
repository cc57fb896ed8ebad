"""The demo's training on the device is JAX's, for one epoch."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("sklearn")

from tools import demo_train


def test_an_epoch_of_the_perceptron(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_train, "ACCURACY", 0.8)
    assert demo_train.train(demo_train.NETS[0], "gc200", 1)
    assert "44 steps" in capsys.readouterr().out
    monkeypatch.setattr(demo_train, "MOST_DIFFERENCE", -1.0)
    assert not demo_train.train(demo_train.NETS[0], "gc200", 1)
