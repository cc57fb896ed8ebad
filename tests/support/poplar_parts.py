"""A loop with momentum whose state is spread over replicas, as offloading passes write it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.support.poplar_small import FEED, SUM, Array

SIZE, MICRO_BATCHES, TURNS = 5, 2, 2
START: list[Array] = [
    np.arange(1, SIZE + 1, dtype=np.float32), np.array([1, 2, 0, -1, 1], np.float32)
]  # fmt: skip
_UPDATES = (
    'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate",'
    'OFFLOAD_WEIGHT_UPDATE_VARIABLES="THREESTATE_ON",'
    'PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES="THREESTATE_ON"}'
)
_LOOP = (
    'backend_config="{\\"call_config\\":{\\"type\\":\\"RepeatLoop\\",'
    f'\\"repeat_config\\":{{\\"repeat_count\\":\\"{MICRO_BATCHES * TURNS}\\"}}}}}}"'
)


@dataclass(frozen=True)
class Parts:
    """How such a loop is written; `clustered`: each replica updates its part alone."""

    replicas: int
    clustered: bool

    @property
    def size(self) -> int:
        """Elements of a replica's part."""
        return -(-SIZE // self.replicas)

    @property
    def text(self) -> str:
        """The module."""
        update = self._clustered() if self.clustered else self._whole()
        computations = "" if self.clustered else self._fusions()
        return f"""HloModule parts

{SUM}

{computations}update {{
  gp = f32[5] parameter(0)
  w = f32[5] parameter(1)
  old = f32[5] parameter(2)
  c = s32[] constant({MICRO_BATCHES})
  k = () custom-call(c), custom_call_target="GradientAccumulationCount"
  half.c = f32[] constant(0.5)
{update}  n.w = f32[5] subtract(w, n.m)
  ROOT out = (f32[5], f32[5]) tuple(n.w, st)
}}

body {{
  w = f32[5] parameter(0)
  m = f32[5] parameter(1)
  ready = token[] after-all()
  feed = ((f32[5]), token[]) infeed(ready), infeed_config={FEED}
  data = (f32[5]) get-tuple-element(feed), index=0
  x = f32[5] get-tuple-element(data), index=0
  g = f32[5] multiply(x, w)
  one = f32[] constant(1)
  c0 = f32[5] custom-call(w), custom_call_target="GradientAccumulatorCreate"
  a0 = f32[5] custom-call(c0, g, one), custom_call_target="GradientAccumulatorAddWithScale"
  s0 = f32[5] custom-call(a0), custom_call_target="GradientAccumulatorSink"
  ru = (f32[5], f32[5]) call(s0, w, m), to_apply=update, {_UPDATES}
  n0 = f32[5] get-tuple-element(ru), index=0
  n1 = f32[5] get-tuple-element(ru), index=1
  ROOT out = (f32[5], f32[5]) tuple(n0, n1)
}}

ENTRY main {{
  w = f32[5] parameter(0)
  m = f32[5] parameter(1)
  p = (f32[5], f32[5]) call(w, m), to_apply=body, {_LOOP}
  r0 = f32[5] get-tuple-element(p), index=0
  r1 = f32[5] get-tuple-element(p), index=1
  ROOT out = (f32[5], f32[5]) tuple(r0, r1)
}}
"""

    def _moved(self, target: str) -> str:
        return (
            f'custom_call_target="RemoteParameter{target}", '
            f'backend_config="{{\\"replication_factor\\":{self.replicas}}}\\n"'
        ).replace("\n", "\\n")

    def _collective(self, target: str, operation: str = "") -> str:
        """Return a collective's attributes as the plugin prints its own ops."""
        said = f"op=COLLECTIVE_OP_{operation}, " if operation else ""
        groups = f"replica_groups=consecutive(group_size={self.replicas})"
        return f'custom_call_target="{target}", {said}{groups}, backend_config="{{}}"'

    @property
    def _padding(self) -> str:
        return f"padding=0_{self.replicas * self.size - SIZE}"

    def _fusions(self) -> str:
        count, size = self.replicas, self.size
        return f"""_pop_op_replicated_parameter_load {{
  p = f32[{size}] parameter(0)
  g = f32[{count},{size}] custom-call(p), {self._collective("AllGather")}
  f = f32[{count * size}] reshape(g)
  ROOT s = f32[5] slice(f), slice={{[0:5]}}
}}

_pop_op_replicated_parameter_store {{
  p = f32[5] parameter(0)
  z = f32[] constant(0)
  q = f32[{count * size}] pad(p, z), {self._padding}
  ROOT r = f32[{size}] custom-call(q), {self._collective("ReduceScatter", "LOCAL")}
}}

"""

    def _whole(self) -> str:
        return f"""  g = f32[5] all-reduce(gp), replica_groups={{}}, to_apply=sum
  part = f32[{self.size}] custom-call(old), {self._moved("Load")}
  m = f32[5] fusion(part), kind=kCustom, calls=_pop_op_replicated_parameter_load
  half = f32[5] broadcast(half.c), dimensions={{}}
  l = f32[5] multiply(m, half)
  n.m = f32[5] add(l, g)
  n.part = f32[{self.size}] fusion(n.m), kind=kCustom, calls=_pop_op_replicated_parameter_store
  st = f32[5] custom-call(old, n.part), {self._moved("Store")}
"""

    def _clustered(self) -> str:
        count, size = self.replicas, self.size
        return f"""  part = f32[{size}] custom-call(old), {self._moved("Load")}
  z = f32[] constant(0)
  gq = f32[{count * size}] pad(gp, z), {self._padding}
  gs = f32[{size}] custom-call(gq), {self._collective("ReduceScatter", "ADD")}
  half = f32[{size}] broadcast(half.c), dimensions={{}}
  l = f32[{size}] multiply(part, half)
  n.part = f32[{size}] add(l, gs)
  ag = f32[{count},{size}] custom-call(n.part), {self._collective("AllGather")}
  af = f32[{count * size}] reshape(ag)
  n.m = f32[5] slice(af), slice={{[0:5]}}
  st = f32[5] custom-call(old, n.part), {self._moved("Store")}
"""

    @property
    def data(self) -> list[Array]:
        """What the queue feeds."""
        count = MICRO_BATCHES * TURNS * self.replicas
        return [
            np.full(SIZE, k % 3 - 1, np.float32) + np.arange(SIZE, dtype=np.float32) % 2
            for k in range(count)
        ]  # fmt: skip

    @property
    def state(self) -> list[NDArray[np.float64]]:
        """Weight and momentum in the end."""
        w, m = (np.asarray(x, np.float64) for x in START)
        each = MICRO_BATCHES * self.replicas
        for turn in range(TURNS):
            m = 0.5 * m + sum(x * w for x in self.data[turn * each : (turn + 1) * each])
            w = w - m
        return [w, m]
