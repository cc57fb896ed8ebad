"""Ten models in PyTorch, by `hloipu.torch_xla.lower`, against PyTorch's own on the CPU.

python -m tools.newcomer.models_torch [NAME]
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import hloipu.torch_xla  # isort: skip  # before torch_xla, so that texts have lines

import torch
import torch_xla
from torch import nn
from torch.nn import functional

from tools.newcomer.judging import Model, judge

_RANDOM = np.random.default_rng(0)
torch.manual_seed(0)


def _array(*shape: int) -> Any:
    return _RANDOM.normal(size=shape).astype("float32")


def _tokens(most: int, *shape: int) -> Any:
    return _RANDOM.integers(0, most, shape)


def _values(results: Any) -> list[Any]:
    flat = results if isinstance(results, tuple | list) else [results]
    return [x.detach().numpy() for x in flat]


def _forward(model: nn.Module, *arguments: Any, own_model: nn.Module | None = None) -> Model:
    device = copy.deepcopy(model).eval().to(torch_xla.device())
    own_model = (own_model or model).eval()
    own = _values(own_model(*map(torch.as_tensor, arguments)))
    with torch.no_grad():
        return Model(hloipu.torch_xla.lower(device, *arguments, model=device), own)


def _gradients(model: nn.Module, loss_of: Callable[..., Any], x: Any, y: Any) -> Model:
    def step_of(model: nn.Module) -> Callable[..., Any]:
        def step(x: Any, y: Any) -> Any:
            loss = loss_of(model(x), y)
            return loss, *torch.autograd.grad(loss, list(model.parameters()))

        return step

    own = _values(step_of(copy.deepcopy(model))(torch.as_tensor(x), torch.as_tensor(y)))
    device = model.to(torch_xla.device())
    return Model(hloipu.torch_xla.lower(step_of(device), x, y, model=device), own)


def _trained(model: nn.Module, loss_of: Callable[..., Any], x: Any, y: Any) -> Model:
    """Return a step of Adam, the second one: `lower` does the first."""

    def step_of(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    own = copy.deepcopy(model)
    own_step = step_of(own, torch.optim.Adam(own.parameters()))
    losses = [own_step(torch.as_tensor(x), torch.as_tensor(y)) for _ in range(2)]
    device = model.to(torch_xla.device())
    optimizer = torch.optim.Adam(device.parameters(), capturable=True)
    step = step_of(device, optimizer)
    lowered = hloipu.torch_xla.lower(step, x, y, model=device, optimizer=optimizer)
    state = {name: value.numpy() for name, value in own.state_dict().items()}
    return Model(lowered, _values(losses[-1]), state)


def _mlp() -> Model:
    stack = nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10), nn.LogSoftmax(-1)
    return _forward(nn.Sequential(*stack), _array(32, 64))


def _cnn_with_batch_norm() -> Model:
    stack = (
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(200, 10),
    )  # fmt: skip
    images = _array(16, 1, 12, 12)
    return _trained(nn.Sequential(*stack), functional.cross_entropy, images, _tokens(10, 16))


class _Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.head = kind(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][:, -1])


def _lstm() -> Model:
    return _gradients(_Recurrent(nn.LSTM), functional.mse_loss, _array(8, 12, 16), _array(8, 4))


def _gru_forward() -> Model:
    model = _Recurrent(nn.GRU)  # torch_xla's: a scan, for XLA devices alone
    own = _Recurrent(nn.modules.rnn.GRU)
    own.load_state_dict(model.state_dict())
    return _forward(model, _array(8, 12, 16), own_model=own)


def _transformer_block() -> Model:
    block = nn.TransformerEncoderLayer(32, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    return _gradients(block, functional.mse_loss, _array(2, 16, 32), _array(2, 16, 32))


def _embedding() -> Model:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(500, 24), nn.Linear(24, 2)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.table(tokens).mean(1))

    return _gradients(Bag(), functional.cross_entropy, _tokens(500, 8, 12), _tokens(2, 8))


def _unet() -> Model:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
            self.up = nn.ConvTranspose2d(16, 8, 2, 2)
            self.out = nn.Conv2d(32, 3, 3, padding=1)

        def forward(self, x: Any) -> Any:
            wide = functional.silu(self.wide(x))
            deep = functional.silu(self.deep(wide))
            nearest = functional.interpolate(deep, scale_factor=2)
            return self.out(torch.cat([wide, self.up(deep), nearest], 1))

    images = _array(2, 3, 16, 16)
    return _gradients(Net(), functional.mse_loss, images, _array(2, 3, 16, 16))


def _mixture_of_experts() -> Model:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 4)
            self.up = nn.Parameter(torch.as_tensor(_array(4, 16, 32)))
            self.down = nn.Parameter(torch.as_tensor(_array(4, 32, 16)))

        def forward(self, x: Any) -> Any:
            gates, chosen = self.router(x).softmax(-1).topk(2)
            hidden = torch.einsum("td,tkdf->tkf", x, self.up[chosen]).relu()
            each = torch.einsum("tkf,tkfd->tkd", hidden, self.down[chosen])
            load = x.new_zeros(4).scatter_add(0, chosen.flatten(), x.new_ones(48))
            return (each * gates[..., None]).sum(1), load

    return _forward(Experts(), _array(24, 16))


def _sorting() -> Model:
    class Sorts(nn.Module):
        def forward(self, x: Any) -> Any:
            values, places = x.sort(-1)
            return values, places, *x.topk(5), x.argsort(-1, descending=True)

    return _forward(Sorts(), _array(8, 100))


def _adam() -> Model:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    return _trained(model, functional.mse_loss, _array(64, 16), _array(64, 4))


MODELS = (
    _mlp, _cnn_with_batch_norm, _lstm, _gru_forward, _transformer_block, _embedding, _unet,
    _mixture_of_experts, _sorting, _adam,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(judge(MODELS, *sys.argv[1:]) > 0)
