"""A perceptron trained with Adam, as Graphcore's plugin prints it: texts, and what they compute.

One layer is one stage. Data come from a queue in stage 0, the loss goes to a queue between the
stages and the update.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH, WIDTH = 4, 6
BETA1, BETA2, EPSILON, RATE = 0.9, 0.99, 1e-3, 0.05
SHAPE = f"f32[{WIDTH},{WIDTH}]"
ROWS = f"f32[{BATCH},{WIDTH}]"
INFEED = '"\\022\\001a\\"\\002\\001\\001(\\003"'
OUTFEED = '"\\022\\001b\\"\\001\\001(\\003"'

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Spelling:
    """How a text says what calls are."""

    as_json: bool = False

    def pipeline(self, values: dict[str, str]) -> str:
        """Return the attributes of a Pipeline call."""
        if not self.as_json:
            words = {"CALL_CONFIG_TYPE": "Pipeline", **values}
            return "frontend_attributes={" + ",".join(f'{k}="{v}"' for k, v in words.items()) + "}"
        names = {
            "PIPELINE_REPEAT_COUNT": "repeatCount", "PIPELINE_SCHEDULE": "schedule",
            "PIPELINE_BATCH_SERIALIZATION_ITERATIONS": "batchSerializationIterations",
            "GradientAccumulationOperandIndex": "gradientAccumulationIndex",
        }  # fmt: skip
        parts = ",".join(f'"{names[k]}":"{v}"' for k, v in values.items() if k in names)
        return self._json(f'"type":"Pipeline","pipelineConfig":{{{parts}}}')

    def stage(self, kind: str, number: int) -> str:
        """Return the attributes of a stage's call."""
        if not self.as_json:
            return f'frontend_attributes={{CALL_CONFIG_TYPE="{kind}",PIPELINE_STAGE_ID="{number}"}}'
        return self._json(f'"type":"{kind}","pipelineStageConfig":{{"stageId":"{number}"}}')

    def update(self, offload: str = "UNDEFINED") -> str:
        """Return the attributes of a ResourceUpdate call."""
        if not self.as_json:
            return (
                'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate",'
                f'OFFLOAD_WEIGHT_UPDATE_VARIABLES="THREESTATE_{offload}"}}'
            )
        state = f'"resourceUpdateConfig":{{"offloadVariables":"THREESTATE_{offload}"}}'
        return self._json(f'"type":"ResourceUpdate",{state}')

    def loop(self, count: int) -> str:
        """Return the attributes of a RepeatLoop call."""
        return self._json(f'"type":"RepeatLoop","repeatConfig":{{"repeatCount":"{count}"}}')

    def _json(self, inner: str) -> str:
        text = f'{{"callConfig":{{{inner}}}}}'.replace('"', '\\"')
        return f'backend_config="{text}"'


@dataclass(frozen=True)
class Written:
    """How a perceptron is written."""

    stages: int = 2
    micro_batches: int = 4
    schedule: int = 0
    reduction: str = "sum"
    repeat: int = 2
    spelling: Spelling = Spelling()
    devices: tuple[int, ...] = ()
    form: str = "pipeline"
    """Or `loop`, `while`: accumulation without stages."""


def text_of(written: Written) -> str:
    """Return the module."""
    return _Text(written).module()


class _Text:
    def __init__(self, written: Written) -> None:
        self.written = written
        self.layers = range(written.stages)
        self.last = written.stages - 1

    def module(self) -> str:
        stages = [self._forward(n) for n in self.layers] + [self._backward(n) for n in self.layers]
        parts = [_SUM, *stages, self._update()]
        if self.written.form == "pipeline":
            parts += [self._pipeline(), self._wrapper(), self._entry()]
        else:
            parts += [self._loop_body(), self._loop_entry()]
        return "HloModule perceptron\n\n" + "\n\n".join(parts) + "\n"

    def _forward(self, n: int) -> str:
        lines = []
        if n == 0:
            lines += [
                "  ready = token[] after-all()",
                f"  feed = (({ROWS}, {ROWS}), token[]) infeed(ready), infeed_config={INFEED}",
                f"  both = ({ROWS}, {ROWS}) get-tuple-element(feed), index=0",
                f"  x = {ROWS} get-tuple-element(both), index=0",
                f"  y = {ROWS} get-tuple-element(both), index=1",
                f"  w = {SHAPE} parameter(0)",
            ]
        else:
            lines += [f"  x = {ROWS} parameter(0)", f"  y = {ROWS} parameter(1)",
                      f"  w = {SHAPE} parameter(2)"]  # fmt: skip
        lines += [
            f"  z = {ROWS} dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            f"  h = {ROWS} tanh(z)",
        ]
        if n == self.last:
            lines += [
                f"  d = {ROWS} subtract(h, y)",
                f"  dd = {ROWS} multiply(d, d)",
                "  zero = f32[] constant(0)",
                "  total = f32[] reduce(dd, zero), dimensions={0,1}, to_apply=sum",
                f"  size = f32[] constant({BATCH * WIDTH})",
                "  loss = f32[] divide(total, size)",
                f"  ROOT out = ({ROWS}, {ROWS}, {ROWS}, f32[]) tuple(h, y, x, loss)",
            ]
        else:
            lines.append(f"  ROOT out = ({ROWS}, {ROWS}, {ROWS}) tuple(h, y, x)")
        return f"forward_{n} {{\n" + "\n".join(lines) + "\n}"

    def _backward(self, n: int) -> str:
        lines = [f"  g = {ROWS} parameter(0)", f"  h = {ROWS} parameter(1)",
                 f"  x = {ROWS} parameter(2)", f"  w = {SHAPE} parameter(3)"]  # fmt: skip
        cotangent = "g"
        if n == self.last:
            cotangent = "dh"
            lines += [
                f"  d = {ROWS} subtract(h, g)",
                f"  scale = f32[] constant({2 / (BATCH * WIDTH)!r})",
                f"  scales = {ROWS} broadcast(scale), dimensions={{}}",
                f"  dh = {ROWS} multiply(d, scales)",
            ]
        lines += [
            "  one = f32[] constant(1)",
            f"  ones = {ROWS} broadcast(one), dimensions={{}}",
            f"  hh = {ROWS} multiply(h, h)",
            f"  slope = {ROWS} subtract(ones, hh)",
            f"  dz = {ROWS} multiply({cotangent}, slope)",
            f"  dw = {SHAPE} dot(x, dz), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}",
            f"  dx = {ROWS} dot(dz, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
            f"  ROOT out = ({ROWS}, {SHAPE}) tuple(dx, dw)",
        ]
        return f"backward_{n} {{\n" + "\n".join(lines) + "\n}"

    def _update(self) -> str:
        n = self.written.stages
        lines = []
        for k in self.layers:
            lines += [
                f"  g{k} = {SHAPE} parameter({k})", f"  w{k} = {SHAPE} parameter({n + k})",
                f"  m{k} = {SHAPE} parameter({2 * n + k})",
                f"  v{k} = {SHAPE} parameter({3 * n + k})",
            ]  # fmt: skip
        lines += [
            f"  t = f32[] parameter({4 * n})", "  one = f32[] constant(1)",
            "  t1 = f32[] add(t, one)",
            f"  k = s32[] constant({self.written.micro_batches})",
            '  count = () custom-call(k), custom_call_target="GradientAccumulationCount"',
        ]  # fmt: skip
        for name, value in (("b1", BETA1), ("b2", BETA2), ("c1", 1 - BETA1), ("c2", 1 - BETA2),
                            ("eps", EPSILON), ("lr", RATE)):  # fmt: skip
            lines += [f"  {name}.c = f32[] constant({value!r})",
                      f"  {name} = {SHAPE} broadcast({name}.c), dimensions={{}}"]  # fmt: skip
        for b in ("b1", "b2"):
            lines += [f"  {b}.t = f32[] power({b}.c, t1)", f"  {b}.r = f32[] subtract(one, {b}.t)",
                      f"  {b}.f = {SHAPE} broadcast({b}.r), dimensions={{}}"]  # fmt: skip
        for k in self.layers:
            lines += [
                f"  m{k}.a = {SHAPE} multiply(m{k}, b1)",
                f"  m{k}.b = {SHAPE} multiply(g{k}, c1)",
                f"  m{k}.n = {SHAPE} add(m{k}.a, m{k}.b)",
                f"  g{k}.s = {SHAPE} multiply(g{k}, g{k})",
                f"  v{k}.a = {SHAPE} multiply(v{k}, b2)",
                f"  v{k}.b = {SHAPE} multiply(g{k}.s, c2)",
                f"  v{k}.n = {SHAPE} add(v{k}.a, v{k}.b)",
                f"  m{k}.h = {SHAPE} divide(m{k}.n, b1.f)",
                f"  v{k}.h = {SHAPE} divide(v{k}.n, b2.f)",
                f"  v{k}.q = {SHAPE} sqrt(v{k}.h)",
                f"  v{k}.e = {SHAPE} add(v{k}.q, eps)",
                f"  u{k} = {SHAPE} divide(m{k}.h, v{k}.e)",
                f"  u{k}.l = {SHAPE} multiply(u{k}, lr)",
                f"  w{k}.n = {SHAPE} subtract(w{k}, u{k}.l)",
            ]  # fmt: skip
        names = [f"{a}{k}.n" for a in "wmv" for k in self.layers]
        shapes = ", ".join([SHAPE] * (3 * n))
        lines.append(f"  ROOT out = ({shapes}, f32[]) tuple({', '.join(names)}, t1)")
        return "update {\n" + "\n".join(lines) + "\n}"

    def _state(self) -> list[str]:
        return [f"{a}{k}" for a in "wmv" for k in self.layers] + ["t"]

    def _parameters(self) -> list[str]:
        names = self._state()
        return [f"  {name} = {'f32[]' if name == 't' else SHAPE} parameter({n})"
                for n, name in enumerate(names)]  # fmt: skip

    def _calls(self) -> list[str]:
        """Return the calls of the stages, the accumulators and the update."""
        spelling, lines = self.written.spelling, []
        stages = self.written.form == "pipeline"
        devices = self.written.devices or tuple(self.layers)
        for n in self.layers:
            given = f"w{n}" if n == 0 else f"h{n - 1}, y{n - 1}, w{n}"
            parts = [ROWS] * 3 + (["f32[]"] if n == self.last else [])
            said = f", {spelling.stage('PipelineStage', n)}" if stages else ""
            said += f", sharding={{maximal device={devices[n]}}}" if stages else ""
            lines.append(f"  f{n} = ({', '.join(parts)}) call({given}), to_apply=forward_{n}{said}")
            lines += [f"  {a}{n} = {ROWS} get-tuple-element(f{n}), index={k}"
                      for k, a in enumerate(("h", "y", "x"))]  # fmt: skip
        lines += [
            f"  loss = f32[] get-tuple-element(f{self.last}), index=3",
            "  ready = token[] after-all()",
            f"  sent = token[] outfeed(loss, ready), outfeed_config={OUTFEED}",
        ]
        for n in reversed(self.layers):
            cotangent = f"y{n}" if n == self.last else f"dx{n + 1}"
            said = f", {spelling.stage('PipelineStageBackward', n)}" if stages else ""
            lines += [
                f"  b{n} = ({ROWS}, {SHAPE}) call({cotangent}, h{n}, x{n}, w{n}), "
                f"to_apply=backward_{n}{said}",
                f"  dx{n} = {ROWS} get-tuple-element(b{n}), index=0",
                f"  dw{n} = {SHAPE} get-tuple-element(b{n}), index=1",
            ]
        return lines + self._accumulators() + self._update_call()

    def _accumulators(self) -> list[str]:
        lines = ["  unit = f32[] constant(1)"]
        kind, count = self.written.reduction, self.written.micro_batches
        if kind == "running_mean":
            turn = [f"  window = s32[] constant({count})",
                    "  turn = s32[] remainder(counter, window)"]  # fmt: skip
            if self.written.form == "pipeline":  # counts from 0 for each update
                turn = ["  turn = s32[] copy(counter)"]
            lines += [
                '  counter = s32[] custom-call(), custom_call_target="ExecutionCounter", '
                'backend_config="{\\"lower_into_pipeline_stage\\":true}"',
                *turn,
                "  n = f32[] convert(turn)", "  n1 = f32[] add(n, unit)",
                "  new = f32[] divide(unit, n1)", "  old = f32[] multiply(n, new)",
            ]  # fmt: skip
        elif kind == "mean":
            lines += [f"  new = f32[] constant({1 / count!r})"]
        for n in self.layers:
            gradient = f"dw{n}"
            if kind != "sum":
                gradient = f"s{n}"
                lines += [f"  news{n} = {SHAPE} broadcast(new), dimensions={{}}",
                          f"  s{n} = {SHAPE} multiply(dw{n}, news{n})"]  # fmt: skip
            old = "old" if kind == "running_mean" else "unit"
            given = f"w{n}" if n % 2 == 0 else ""
            target = "custom_call_target="
            lines += [
                f'  c{n} = {SHAPE} custom-call({given}), {target}"GradientAccumulatorCreate"',
                f"  a{n} = {SHAPE} custom-call(c{n}, {gradient}, {old}), "
                f'{target}"GradientAccumulatorAddWithScale"',
                f'  g{n} = {SHAPE} custom-call(a{n}), {target}"GradientAccumulatorSink"',
            ]
        return lines

    def _update_call(self) -> list[str]:
        n = self.written.stages
        names = [f"g{k}" for k in self.layers] + self._state()
        shapes = ", ".join([SHAPE] * (3 * n) + ["f32[]"])
        lines = [f"  ru = ({shapes}) call({', '.join(names)}), to_apply=update, "
                 f"{self.written.spelling.update()}"]  # fmt: skip
        lines += [
            f"  r{k} = {'f32[]' if k == 3 * n else SHAPE} get-tuple-element(ru), index={k}"
            for k in range(3 * n + 1)
        ]
        return lines

    def _results(self) -> tuple[str, str]:
        n = 3 * self.written.stages
        return ", ".join([SHAPE] * n + ["f32[]"]), ", ".join(f"r{k}" for k in range(n + 1))

    def _pipeline(self) -> str:
        shapes, names = self._results()
        lines = [*self._parameters(), *self._calls(), f"  ROOT out = ({shapes}) tuple({names})"]
        return "pipeline {\n" + "\n".join(lines) + "\n}"

    def _wrapper(self) -> str:
        shapes, names = self._results()
        n = 3 * self.written.stages
        given = ", ".join(self._state())
        lines = [*self._parameters(), f"  k = s32[] parameter({n + 1})",
                 f"  inner = ({shapes}) call({given}), to_apply=pipeline"]  # fmt: skip
        lines += [
            f"  r{k} = {'f32[]' if k == n else SHAPE} get-tuple-element(inner), index={k}"
            for k in range(n + 1)
        ]
        lines.append(f"  ROOT out = ({shapes}, s32[]) tuple({names}, k)")
        return "wrapper {\n" + "\n".join(lines) + "\n}"

    def _entry(self) -> str:
        shapes, names = self._results()
        n = 3 * self.written.stages
        said = self.written.spelling.pipeline({
            "PIPELINE_SCHEDULE": str(self.written.schedule),
            "PIPELINE_REPEAT_COUNT": str(self.written.repeat),
            "PIPELINE_BATCH_SERIALIZATION_ITERATIONS": "1",
            "GradientAccumulationOperandIndex": str(n + 1), "RECOMPUTATION_MODE": "Auto",
            "OFFLOAD_ACTIVATIONS": "THREESTATE_UNDEFINED",
            "OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS": "THREESTATE_UNDEFINED",
            "OFFLOAD_VARIABLES": "THREESTATE_OFF", "PARTITION_VARIABLES": "THREESTATE_OFF",
        })  # fmt: skip
        lines = [*self._parameters(), f"  k = s32[] constant({self.written.micro_batches})",
                 f"  p = ({shapes}, s32[]) call({', '.join(self._state())}, k), "
                 f"to_apply=wrapper, {said}"]  # fmt: skip
        lines += [
            f"  r{k} = {'f32[]' if k == n else SHAPE} get-tuple-element(p), index={k}"
            for k in range(n + 1)
        ]
        lines.append(f"  ROOT out = ({shapes}) tuple({names})")
        return "ENTRY main {\n" + "\n".join(lines) + "\n}"

    def _loop_body(self) -> str:
        shapes, names = self._results()
        lines = [*self._calls(), f"  ROOT out = ({shapes}) tuple({names})"]
        if self.written.form == "loop":
            return "body {\n" + "\n".join([*self._parameters(), *lines]) + "\n}"
        taken = [f"  state = ({shapes}, s32[]) parameter(0)"]
        count = 3 * self.written.stages
        taken += [
            f"  {name} = {'f32[]' if name == 't' else SHAPE} get-tuple-element(state), index={n}"
            for n, name in enumerate(self._state())
        ]
        taken += [f"  i = s32[] get-tuple-element(state), index={count + 1}",
                  "  step = s32[] constant(1)", "  i1 = s32[] add(i, step)"]  # fmt: skip
        lines[-1] = f"  ROOT out = ({shapes}, s32[]) tuple({names}, i1)"
        limit = self.written.repeat * self.written.micro_batches
        condition = (
            f"condition {{\n  state = ({shapes}, s32[]) parameter(0)\n"
            f"  i = s32[] get-tuple-element(state), index={count + 1}\n"
            f"  limit = s32[] constant({limit})\n"
            "  ROOT on = pred[] compare(i, limit), direction=LT\n}\n\n"
        )
        return condition + "body {\n" + "\n".join([*taken, *lines]) + "\n}"

    def _loop_entry(self) -> str:
        shapes, names = self._results()
        n = 3 * self.written.stages
        limit = self.written.repeat * self.written.micro_batches
        lines = self._parameters()
        if self.written.form == "loop":
            lines.append(f"  p = ({shapes}) call({', '.join(self._state())}), to_apply=body, "
                         f"{self.written.spelling.loop(limit)}")  # fmt: skip
        else:
            lines += [
                "  zero = s32[] constant(0)",
                f"  start = ({shapes}, s32[]) tuple({', '.join(self._state())}, zero)",
                f"  p = ({shapes}, s32[]) while(start), condition=condition, body=body",
            ]
        lines += [
            f"  r{k} = {'f32[]' if k == n else SHAPE} get-tuple-element(p), index={k}"
            for k in range(n + 1)
        ]
        lines.append(f"  ROOT out = ({shapes}) tuple({names})")
        return "ENTRY main {\n" + "\n".join(lines) + "\n}"


_SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}"""


def start(written: Written) -> list[Array]:
    """Return weights, moments and the count of steps to begin with."""
    rng = np.random.default_rng(7)
    weights = [
        (rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        for _ in range(written.stages)
    ]
    moments = [np.zeros((WIDTH, WIDTH), np.float32) for _ in range(2 * written.stages)]
    return [*weights, *moments, np.zeros((), np.float32)]


def batches(written: Written) -> list[tuple[Array, Array]]:
    """Return the elements of the queue for one run."""
    rng = np.random.default_rng(8)
    return [
        (
            rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
            np.tanh(rng.normal(size=(BATCH, WIDTH))).astype(np.float32),
        )
        for _ in range(written.repeat * written.micro_batches)
    ]


def trained(written: Written) -> tuple[list[NDArray[np.float64]], list[float]]:
    """Return state and losses after one run, computed in f64 from the formulas."""
    n, k = written.stages, written.micro_batches
    state = [np.asarray(x, np.float64) for x in start(written)]
    elements, losses = batches(written), []
    for turn in range(written.repeat):
        w, m, v, t = state[:n], state[n : 2 * n], state[2 * n : 3 * n], state[-1] + 1
        total = [np.zeros_like(x) for x in w]
        for x, y in elements[turn * k : (turn + 1) * k]:
            loss, slopes = _gradients(w, np.asarray(x, np.float64), np.asarray(y, np.float64))
            losses.append(loss)
            total = [a + b for a, b in zip(total, slopes, strict=True)]
        if written.reduction != "sum":
            total = [a / k for a in total]
        m = [BETA1 * a + (1 - BETA1) * g for a, g in zip(m, total, strict=True)]
        v = [BETA2 * a + (1 - BETA2) * g * g for a, g in zip(v, total, strict=True)]
        w = [
            a - RATE * (b / (1 - BETA1**t)) / (np.sqrt(c / (1 - BETA2**t)) + EPSILON)
            for a, b, c in zip(w, m, v, strict=True)
        ]
        state = [*w, *m, *v, t]
    return state, losses


def _gradients(
    weights: list[NDArray[np.float64]], x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[float, list[NDArray[np.float64]]]:
    values = [x]
    for w in weights:
        values.append(np.tanh(values[-1] @ w))
    loss = float(np.mean((values[-1] - y) ** 2))
    cotangent = 2 * (values[-1] - y) / y.size
    found = []
    for n in reversed(range(len(weights))):
        dz = cotangent * (1 - values[n + 1] ** 2)
        found.append(values[n].T @ dz)
        cotangent = dz @ weights[n].T
    return loss, found[::-1]
