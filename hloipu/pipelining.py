"""Report how options cut a step into micro-batches and stages."""

from hloipu.options.table import Options
from hloipu.places import system_ipus
from hloipu_compiler.compilation import Compilation
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.on_demand import marked_stages
from hloipu_compiler.partition.placement.request import ShardRequest
from hloipu_compiler.passes.pipelines import AFTER_FRONT, before_cut
from hloipu_compiler.plan.participants import meets_others
from hloipu_compiler.plan.pipelining import (
    BATCH,
    MICRO_BATCH,
    PipelineRequest,
    Pipelining,
    replicas_text,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.machine.links import check_system
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.remote_parts import remote_parts
from hloipu_runtime.program.program import Program

_CUTTING = (
    "schedule", "reduction", "accumulator_dtype", "accumulator", "loss_output",
    "batch_serialization", "shard_optimizer", "gather_weights",
)  # fmt: skip
"""Options that say how a step is cut, and do not ask for it."""


def gathers_again(module: Module, micro_batches: int, *, is_divided: bool) -> bool:
    """Whether micro-batches or loops may read weights that a divided module gathers for them."""
    has_loop = any(x.opcode == "while" for c in module.computations for x in c.instructions)
    return is_divided and (micro_batches > 1 or has_loop)


def _cutting_flags(module: Module, compilation: Compilation, options: Options) -> str:
    """Return which options say how a step is to be cut, as flags; those that have no effect."""
    usual, is_divided = Options(), compilation.partitioned is not None
    stated = [name for name in _CUTTING if getattr(options, name) != getattr(usual, name)]
    if "gather_weights" in stated and gathers_again(module, 1, is_divided=is_divided):
        stated.remove("gather_weights")
    if options.recompute in ("blocks", "full"):  # cheap values are made again of any module
        stated.append("recompute")
    return ", ".join("--" + name.replace("_", "-") for name in stated)


def pipeline_request(options: Options) -> PipelineRequest:
    """Return what options ask for: `stages`, `micro_batches` and what goes with them."""
    device_map = [
        (ipus,) if isinstance(ipus, int) else tuple(ipus) for ipus in options.device_map or ()
    ]
    return PipelineRequest(
        options.micro_batches,
        options.stages or (len(options.cut_at) + 1 if options.cut_at else None),
        options.schedule,
        options.reduction,
        options.accumulator_dtype or "",
        accumulator_types=dict(options.accumulator),
        recompute="none" if options.recompute == "auto" else options.recompute,
        device_map=tuple(device_map),
        cut_at=options.cut_at or (),
        loss=options.loss_output,
        gather_weights=MICRO_BATCH if options.gather_weights == MICRO_BATCH else BATCH,
        shard_optimizer=options.shard_optimizer,
        offload=options.offload,
        offload_activations=options.offload_activations,
        offload_weights=options.offload_weights,
        offload_accumulators=options.offload_accumulators,
        batch_serialization=options.batch_serialization,
    )


def cut_lines(module: Module, compilation: Compilation, options: Options) -> list[str]:
    """Return how a step was cut, as reports show it beside options; or what asks for it in vain."""
    partition_lines = [] if compilation.partitioned is None else [compilation.partitioned.line]
    if compilation.pipelining is not None:
        passes = options.passes
        averages = compilation.plan.averages_gradients or not meets_others(module)
        lines = partition_lines + compilation.pipelining.lines()
        lines += compilation.pipelining.replica_lines(compilation.plan.replicas, averages=averages)
        lines += _idle_flags(module, compilation, compilation.pipelining, options)
        lines += _key_lines(compilation, options) + _outline_lines(options)
        if passes and passes not in AFTER_FRONT and before_cut(passes) == "front":
            lines.append(f"the step is cut: --passes {passes} without effect")
        return lines
    lines, idle = (
        partition_lines + _uncut_replicas(module, compilation.plan),
        _cutting_flags(module, compilation, options),
    )
    lines += _key_lines(compilation, options) + _outline_lines(options)
    if idle:
        lines.append(f"no stages or micro-batches: {idle} without effect")
    if options.passes and options.recompute in ("cheap", "blocks", "full"):
        lines.append(
            f"--passes {options.passes} says what is made again: --recompute without effect"
        )
    stages = len(set(marked_stages(module.entry).values()))
    if stages > 1:
        lines.append(
            f"ops are annotated with {stages} stages, and the step is not cut: --micro-batches K "
            "or --stages N asks for it"
        )
    return lines


def _outline_lines(options: Options) -> list[str]:
    """Return a line where blocks are asked to be functions, and passes of one's own say which."""
    if options.outline != "on" or not options.passes or options.passes in AFTER_FRONT:
        return []
    return [
        f"--passes {options.passes} says what becomes a function: --outline on without effect; "
        "write outline-blocks among the passes"
    ]


def _key_lines(compilation: Compilation, options: Options) -> list[str]:
    """Return what replicas and micro-batches draw, or that no option about it has an effect."""
    if (
        compilation.keys.draws and compilation.plan.replicas > 1
    ) or options.replica_keys == Options().replica_keys:
        return list(compilation.keys.lines)
    why = "no draws from keys" if compilation.plan.replicas > 1 else "one replica"
    return [*compilation.keys.lines, f"{why}: --replica-keys {options.replica_keys} without effect"]


def _idle_flags(
    module: Module, compilation: Compilation, cut: Pipelining, options: Options
) -> list[str]:
    """Return which options change nothing about a step that is cut, and why, for people."""
    trains, usual, again = cut.schedule.trains, Options(), options.recompute
    from hloipu_compiler.partition.training.sharded_update import LEAST_PART_BYTES

    least = LEAST_PART_BYTES * compilation.plan.replicas
    no_sharded_state = f"no state of {least} bytes or more that elementwise updates alone read"
    replica_condition = "one replica" if compilation.plan.replicas == 1 else no_sharded_state
    from hloipu_compiler.lowering.core.offloading import LEAST_BYTES

    idle = {
        "no backward stage": ["recompute"]
        if len(cut.positions) == cut.schedule.stages and not (trains and again == "blocks")
        else [],
        "one stage": ["schedule"] if cut.schedule.stages == cut.schedule.group == 1 else [],
        "no gradients": [] if trains else ["reduction", "accumulator_dtype", "shard_optimizer"],
        "no weights that micro-batches gather": []
        if gathers_again(module, cut.micro_batches, is_divided=compilation.partitioned is not None)
        else ["gather_weights"],
        replica_condition: ["shard_optimizer"] if trains and not cut.whole else [],
        f"no such arrays of {LEAST_BYTES} bytes or more": _unused_buffers(
            compilation.program, options
        ),
    }
    asked = {
        why: [
            name for name in names if getattr(options, name) not in (getattr(usual, name), "none")
        ]
        for why, names in idle.items()
    }
    return [
        f"{why}: {', '.join('--' + name.replace('_', '-') for name in names)} without effect"
        for why, names in asked.items()
        if names
    ]


def _unused_buffers(program: Program, options: Options) -> list[str]:
    """Return the options that ask for remote buffers of which the program has none."""
    asked = {"state": "offload" if options.offload == "on" else ""}
    for kind in ("weights", "activations", "accumulators"):
        asked[kind] = f"offload_{kind}" if getattr(options, f"offload_{kind}") else ""
    if not any(asked.values()):
        return []
    kinds_used = {category.value for parts in remote_parts(program) for category in parts}
    return [name for kind, name in asked.items() if name and kind not in kinds_used]


def _uncut_replicas(module: Module, plan: Plan) -> list[str]:
    """Return what replicas of a step that is not cut combine, for people."""
    if plan.replicas == 1:
        return []
    if plan.averages_gradients:
        combined = (
            "gradients combined by mean, weights stay alike; data, results: each replica's own"
        )
    elif meets_others(module):
        combined = (
            "the module's own collectives combine what they name, and nothing else is combined"
        )
    else:
        combined = (
            "nothing is combined, each computes from arguments of its own; --loop N or "
            "--micro-batches K has them combine gradients"
        )
    return [f"{replicas_text(plan.replicas, plan.shards)}: {combined}"]


def shard_request(options: Options) -> ShardRequest:
    """Return what options ask for of `shards`."""
    if options.shards == "auto":
        return ShardRequest(is_automatic=True)
    return ShardRequest(int(options.shards) if options.shards is not None else None)


def check_ipus(taken_ipus: int, machine: Machine, options: Options) -> None:
    """Raise where the system asked for has not as many IPUs as a program, or the machine has not.

    UnsupportedError E0475, MachineError E3210.
    """
    wanted = system_ipus(machine, options)
    check_system(machine, max(taken_ipus, wanted))
    if options.ipu_ids is not None and wanted != taken_ipus:
        raise UnsupportedError(
            "E0475",
            f"the devices that --ipu-ids names have {wanted} IPUs; the program takes {taken_ipus}",
            hint="name devices with as many IPUs; `hloipu targets MACHINE` lists them",
        )
    if wanted not in (1, taken_ipus):
        raise UnsupportedError(
            "E0475",
            f"{wanted} IPUs were asked for; the program takes {taken_ipus}",
            hint="leave --ipus out, cut the step into stages (--stages N) or run copies of it "
            "(--replicas R)",
        )
