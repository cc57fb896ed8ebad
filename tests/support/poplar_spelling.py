"""A perceptron trained with Adam: how Graphcore's plugin writes it, its sizes and its numbers."""

from dataclasses import dataclass

BATCH, WIDTH = 4, 6
BETA1, BETA2, EPSILON, RATE = 0.9, 0.99, 1e-3, 0.05
SHAPE = f"f32[{WIDTH},{WIDTH}]"
ROWS = f"f32[{BATCH},{WIDTH}]"
INFEED = '"\\022\\001a\\"\\002\\001\\001(\\003"'
OUTFEED = '"\\022\\001b\\"\\001\\001(\\003"'


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
