"""A perceptron trained with Adam, as Graphcore's plugin prints it.

One layer is one stage. Data come from a queue in stage 0, the loss goes to a queue between the
stages and the update.
"""

from tests.support.poplar_spelling import OUTFEED, ROWS, SHAPE, Written
from tests.support.poplar_stages import backward, forward, update


def text_of(written: Written) -> str:
    """Return the module."""
    return _Text(written).module()


class _Text:
    def __init__(self, written: Written) -> None:
        self.written = written
        self.layers = range(written.stages)
        self.last = written.stages - 1

    def module(self) -> str:
        stages = [forward(n, self.last) for n in self.layers] + [
            backward(n, self.last) for n in self.layers
        ]
        parts = [_SUM, *stages, update(self.written)]
        if self.written.form == "pipeline":
            parts += [self._pipeline(), self._wrapper(), self._entry()]
        else:
            parts += [self._loop_body(), self._loop_entry()]
        return "HloModule perceptron\n\n" + "\n\n".join(parts) + "\n"

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
