"""CompiledProgram: what users run, estimate and save."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu_runtime.arguments import (
    DEFAULT_LIVE_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    Number,
    Positive,
    Progress,
    Seed,
    State,
    Watch,
    checked,
    shown,
)
from hloipu_runtime.collection import without_collection
from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.counting import ChargePlan
from hloipu_runtime.costs.estimate import Estimate, Trips, estimate
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import fields_of
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.categories import CODE, Category
from hloipu_runtime.memory.does_not_fit import require_fit
from hloipu_runtime.memory.plan import MemoryPlan, plan_memory
from hloipu_runtime.memory.report import MemoryReport, memory_report
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.report.build import (
    About,
    machine_overrides,
    profile_of_estimate,
    profile_of_run,
)
from hloipu_runtime.report.change import Finding, Fitting
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.device import Compiled, Device, SharedLoad

if TYPE_CHECKING:
    from hloipu_runtime.executable import Executable, OverMemory
    from hloipu_runtime.report.ports import ArrayPort
    from hloipu_runtime.session.run_result import RunResult
    from hloipu_runtime.session.session import Session
    from hloipu_runtime.simulate.plain_runs import PlainRuns

Mode = str


@dataclass(frozen=True)
class CompiledProgram(Compiled):
    """A proved program for one machine; `fits` says whether its tiles have the memory for it."""

    program: Program
    machine: Machine
    code_memory: bool = True
    """Whether code counts as memory."""
    over_memory: "OverMemory" = "refuse"
    sources: Mapping[str, str] = field(default_factory=dict)
    """Instruction -> file:line of the program that was compiled, where the dump says so."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user asked for, as reports show it."""
    assume_trips: Trips = None
    """Turns to assume of loops that data ends, where a call says nothing else."""
    fingerprint: str = ""
    """The key of what it was compiled from, where that is known."""
    live_bytes: int = DEFAULT_LIVE_BYTES
    """That a run may take of the host's memory, all participants together."""
    advisor: Callable[["CompiledProgram"], Fitting] | None = field(
        default=None, repr=False, compare=False
    )
    """Finds what makes it fit, by compiling anew: only who has the module can."""
    describe: Callable[[], Mapping[str, Any]] | None = field(
        default=None, repr=False, compare=False
    )
    """Tells reports of the ops of the module that was lowered: only who has the module can."""
    known_memory: MemoryPlan | None = field(default=None, repr=False, compare=False)
    """The memory plan, where whoever compiled the program has made it."""
    parameter_names: tuple[str, ...] = ()
    """Of the entry's arrays by number, as the module has them."""
    is_proved: bool = field(default=False, repr=False)
    """Whether whoever made the record has proved the program: files are proved as they are read."""

    def __post_init__(self) -> None:
        """Prove the program; ProgramError E4050 where that fails."""
        if not self.is_proved:
            with without_collection():
                verify(self.program, self.machine.chip.tiles_per_ipu)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: not what runs, estimates and reports keep."""
        return fields_of(self)

    def __repr__(self) -> str:
        """Return name, machine and size; whether it fits where that is known already."""
        program = self.program
        fits = f", fits={self.fits}" if "memory_plan" in self.__dict__ else ""
        return (
            f"<CompiledProgram {shown(program.name)} for {shown(self.machine.name)}: "
            f"{program.ipus} IPUs x {program.replicas} replicas, "
            f"{len(program.variables):,} variables{fits}>"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show: whether it fits, how full its tiles are, its cycles."""
        from hloipu_runtime.report.overview import overview_html
        from hloipu_runtime.report.ports import html_table, size_bytes

        memory, profile = self.memory, self.profile()
        share = memory.peak.total_bytes / memory.available_bytes
        facts = [
            ("fits", "yes" if self.fits else "no"),
            ("fullest tile", f"{memory.peak.total_bytes:,} bytes, {share:.1%} of its memory"),
            ("device cycles", f"{profile.device_cycles:,}"),
            ("IPUs x replicas", f"{self.program.ipus} x {self.program.replicas}"),
            ("machine", self.machine.name),
            ("takes", f"{len(self.inputs)} arrays, {size_bytes(self.inputs):,} bytes"),
            ("gives", f"{len(self.outputs)} arrays, {size_bytes(self.outputs):,} bytes"),
        ]
        with_findings = replace(profile, findings=self.findings(profile))
        return html_table(self.program.name, facts) + overview_html(with_findings)

    @cached_property
    def inputs(self) -> "tuple[ArrayPort, ...]":
        """What it takes: name, shape, type and role of each array, by parameter number."""
        from hloipu_runtime.report.ports import inputs_of

        return inputs_of(self.program, self.parameter_names)

    @cached_property
    def outputs(self) -> "tuple[ArrayPort, ...]":
        """What it gives, results and state and what queues take, by result number."""
        from hloipu_runtime.report.ports import outputs_of

        return outputs_of(self.program, self.parameter_names)

    def memory_analysis(self) -> dict[str, int]:
        """Return bytes by the keys of `jax.stages.Compiled.memory_analysis`, of all tiles together.

        Arguments and outputs count once, as users hold them; aliased bytes are those of state and
        of results that take over a parameter's memory. Temporaries and code are those of one
        replica's tiles, each at its own peak. `peak_memory_in_bytes` is that of all its tiles;
        `peak_bytes_per_tile` and `available_bytes_per_tile` say whether it fits.
        """
        from hloipu_runtime.report.ports import size_bytes

        staying = self.options.get("kept_between_runs", {}).get("results", ())
        aliased = [port for port in self.outputs if port.role == "state" or port.number in staying]
        parts = self.memory.parts
        return {
            "argument_size_in_bytes": size_bytes(self.inputs),
            "output_size_in_bytes": size_bytes(self.outputs),
            "alias_size_in_bytes": size_bytes(aliased),
            "temp_size_in_bytes": parts.get(Category.TEMPORARIES, 0)
            + parts.get(Category.EXCHANGE_BUFFERS, 0),
            "generated_code_size_in_bytes": sum(parts.get(category, 0) for category in CODE),
            "peak_memory_in_bytes": self.memory.total_bytes,
            "peak_bytes_per_tile": self.memory.peak.total_bytes,
            "available_bytes_per_tile": self.memory.available_bytes,
        }

    @cached_property
    def forms(self) -> Forms:
        """How each transfer is carried out; its cycles and its memory both follow from that."""
        return self.memory_plan.forms

    @cached_property
    def costs(self) -> Costs:
        """The cost of every step."""
        with without_collection():
            return step_charges(self.program, self.machine, self.forms)

    @cached_property
    def memory_plan(self) -> MemoryPlan:
        """Where every variable lies."""
        known = self.known_memory
        if known is not None and known.code_memory == self.code_memory:
            return replace(known, program=self.program)
        with without_collection():
            plan = plan_memory(self.program, self.machine, code_memory=self.code_memory)
            return _with_chosen_forms(plan)

    def with_chosen_forms(self) -> "CompiledProgram":
        """Return it with its exchanges as fast as the memory of their tiles allows."""
        known = self.memory_plan if self.known_memory is not None else None
        chosen = known and _with_chosen_forms(known)
        if chosen is known:
            return self
        return replace(self, known_memory=chosen, is_proved=True)

    @cached_property
    def memory(self) -> MemoryReport:
        """What each tile's memory is used for."""
        return memory_report(self.memory_plan, sources=self.sources)

    @cached_property
    def fitting(self) -> Fitting | None:
        """What makes it fit; None where it does, or the module is not at hand.

        Compiles again with one change after the other, for as long as compiling took at most;
        `hloipu advise` takes more time.
        """
        return None if self.fits or self.advisor is None else self.advisor(self)

    @property
    def fits(self) -> bool:
        """Whether every tile has the memory that it needs."""
        return self.memory_plan.fits

    @checked
    def estimate(self, assume_trips: Trips = None) -> Estimate:
        """Return the cycles of one run, without running."""
        trips = self.assume_trips if assume_trips is None else assume_trips
        return estimate(self.program, self.machine, trips, self.costs)

    @checked
    def run(
        self,
        *arguments: Any,
        mode: Mode = "functional",
        poison: bool = False,
        seed: Seed = 0,
        progress: Progress | None = None,
        watch: Watch | None = None,
        each: Sequence[Sequence[Any]] = (),
        max_iterations: Number | None = None,
        fast: bool | None = None,
    ) -> "RunResult":
        """Run once on arrays in entry-parameter order, tuples flattened; they are not changed.

        One dictionary in their place has them by the names of `inputs`, or by number. A program
        that keeps state and has no queues begins with it, and gives the state and the results of
        the last step.

        `functional` computes whole tensors, `exact` tile by tile; cycles are the same. `poison`
        fills tile memories before use, `seed` is where stateful random ops begin. `progress` is
        told again and again how many steps and iterations of loops are done, `watch` each value
        that a step of the outermost level leaves, in storage form, and of steps that `functional`
        computes together what others read; both by the first participant.
        `each`: in place of `arguments`, those of every participant, where there are several.
        `max_iterations`: iterations that a loop may take each time it is entered. `fast`: whether
        kernels may be compiled to machine code, where hloipu[fast] is installed, which is so by
        default; values are the same, bit for bit. Runs may go on in any number of threads at once,
        and within `watch` and `progress`: each has memory of its own. Raises DoesNotFit unless
        memory suffices or `over_memory` is "allow", UsageError where arguments do not fit the
        parameters, LimitError E5016 where the host's memory does not suffice, or `live_bytes`,
        E5031 where a loop takes more iterations than `max_iterations`.
        """
        from hloipu_runtime.kernels.native.settings import kernels_allowed
        from hloipu_runtime.session.run_result import (
            RunResult,
            begun_with,
            one_run,
            require_no_queues,
        )
        from hloipu_runtime.simulate.run.host import Counts, TurnLimit, require_mode

        require_mode(mode)
        self._require_runnable()
        program = self.program
        if program.is_resident:
            require_no_queues(program, watch, each)
            state, constants = begun_with(self.inputs, self.parameter_names, arguments)
            with self.session(
                state=state, constants=constants, mode=mode, poison=poison, seed=seed,
                max_iterations=max_iterations, fast=fast,
            ) as session:  # fmt: skip
                return one_run(session, self.outputs, progress)
        self._runs.require_host(mode)
        # Partitions that have blocks are given whole arrays together.
        together = 1 if program.partitioning is None else program.partitions
        takers = program.participants // together
        if each and len(each) != takers:
            raise UsageError(
                "E3105",
                f"{takers} {'participants' if together == 1 else 'replicas'} take as many lists of "
                f"arguments; {len(each)} were given",
                hint="" if together == 1 else "give whole arrays: partitions are sent their blocks",
            )
        counts = Counts(progress=progress, limit=TurnLimit(max_iterations, self.sources))
        with kernels_allowed(fast):
            everyone = self._runs.run(
                each or [arguments], mode, counts, watch, poison=poison, seed=seed
            )
        return RunResult(lambda: self._profile_of(counts.runs, mode), everyone[0], everyone)

    @checked
    def session(
        self,
        *,
        state: State | None = None,
        constants: State = (),
        infeeds: Mapping[str, Any] | None = None,
        outfeeds: Mapping[str, Any] | None = None,
        mode: Mode = "functional",
        poison: bool = False,
        seed: Seed = 0,
        timeout: Positive = DEFAULT_TIMEOUT_SECONDS,
        rates: Mapping[str, Positive] | None = None,
        device: Device | SharedLoad | None = None,
        identical: bool = False,
        max_iterations: Number | None = None,
        elsewhere: Any = None,
        fast: bool | None = None,
    ) -> "Session":
        """Return a session, in which the program's state stays on the device from run to run.

        `state`: arrays by name or parameter number, or a list in the program's order; a checkpoint
        may be loaded instead. `constants`: what no queue feeds, loaded once, by name or number.
        `infeeds`: by name, arrays whose rows are elements, an iterable, a function of the element's
        number, or a source. `outfeeds`: by name, `all`, `last`, `first` or `every-N`; a queue keeps
        all elements unless told otherwise. `seed` is where stateful random ops begin. `rates`:
        elements per second that the host makes of an infeed. `device` is shared with other
        sessions, of which one at a time lies there (`hloipu.Device.load` has them stay together).
        Of several replicas, replica i of R takes the elements i, i + R, … of each feed; `identical`
        says that all have the same data, so that one is run and stands for all. `max_iterations`:
        iterations that a loop within the step may take each time it is entered (LimitError E5031).
        `elsewhere`: participants that other processes run, an `Elsewhere` of `hloipu.hosts`.
        `fast`: whether kernels may be compiled to machine code, as in `run`.
        Raises what `Session` raises, DoesNotFit unless memory suffices or `over_memory` is "allow",
        UsageError E3158 for a program that was not compiled for sessions.
        """
        from hloipu_runtime.session.engine import SessionSettings
        from hloipu_runtime.session.session import Session

        if not self.program.is_resident and not isinstance(device, SharedLoad):
            raise UsageError(
                "E3158",
                f"{self.program.name!r} keeps no state and has no queues",
                hint="compile the step with loop=N, feed= and outfeed=",
            )
        self._require_runnable()
        if isinstance(device, SharedLoad):
            from hloipu_runtime.memory.together import require_room

            others = [(loaded.program, loaded.layouts) for loaded in device.device.beside.values()]
            require_room([*others, (self, device.layouts)], self.over_memory)
        return Session(
            self.program,
            self.costs,
            self._about,
            state=state,
            constants=constants,
            infeeds=infeeds,
            outfeeds=outfeeds,
            settings=SessionSettings(
                mode,
                poison,
                seed,
                timeout,
                dict(rates or {}),
                device,
                identical,
                self.live_bytes,
                max_iterations,
                elsewhere,
                fast,
            ),
        )

    def _require_runnable(self) -> None:
        """Raise DoesNotFit where memory does not suffice, UsageError E3143 for elided constants."""
        if self.over_memory == "refuse":
            require_fit(self.memory, self.fitting_lines)
        if self.program.elided:
            raise UsageError(
                "E3143",
                f"the values of {len(self.program.elided)} constants were left out of the text, "
                f"{self.program.elided[0]!r} first: nothing can be computed from them",
                hint="print the module with its large constants, or give --fill-elided",
            )

    def fitting_lines(self) -> list[str]:
        """Return for people what makes it fit, a line each."""
        return self.fitting.lines() if self.fitting else []

    @checked
    def profile(self, assume_trips: Trips = None) -> Profile:
        """Return the profile of an estimate."""
        return profile_of_estimate(self.costs, self.estimate(assume_trips), self._about)

    @checked
    def findings(self, profile: Profile | None = None) -> tuple[Finding, ...]:
        """Return what keeps it slow or large, the dearest first: of a run, or of an estimate."""
        from hloipu_runtime.findings.facts import Facts
        from hloipu_runtime.findings.find import findings_of

        profile = profile or self.profile()
        return findings_of(Facts(self.program, self.machine, profile, self.memory))

    def executable(self) -> "Executable":
        """Return the record that files hold."""
        from hloipu_runtime.executable import Executable

        return Executable(
            self.program,
            self.machine,
            code_memory=self.code_memory,
            over_memory=self.over_memory,
            options=self.options,
            sources=self.sources,
            fingerprint=self.fingerprint,
            memory=self.memory.to_json(),
            parameter_names=self.parameter_names,
            addresses=np.array(self.memory_plan.addresses, np.int64),
        )

    @checked
    def save(self, path: str | Path) -> None:
        """Write it to a file that `load` reads; equal programs give equal bytes.

        Raises UsageError E3004 where it cannot be written, LimitError E5025 for steps nested deeper
        than files hold.
        """
        self.executable().save(path)

    @cached_property
    def _about(self) -> About:
        return About(
            self.sources,
            self.options,
            machine_overrides(self.machine),
            self.memory.to_json(),
            self.parameter_names,
        )

    def _profile_of(self, runs: Mapping[str, int], mode: Mode) -> Profile:
        counts = ChargePlan(self.costs).counts(runs)
        return profile_of_run(self.costs, counts, self._about, mode=mode)

    @cached_property
    def _runs(self) -> "PlainRuns":
        from hloipu_runtime.simulate.plain_runs import PlainRuns

        return PlainRuns(self.program, self.parameter_names, self.live_bytes)


def _with_chosen_forms(plan: MemoryPlan) -> MemoryPlan:
    if plan.fits and not plan.forms.price:
        return plan
    from hloipu_runtime.memory.chosen_forms import with_chosen_forms  # most programs fit

    return with_chosen_forms(plan)


@checked
def load(path: str | Path) -> CompiledProgram:
    """Return the compiled program of a file, proved again.

    Raises UsageError E3001 where the file cannot be read, ArtefactError where it is not what was
    written, ProgramError where its program is not proved.
    """
    from hloipu_runtime.executable import load as load_executable

    return compiled_program(load_executable(path))


def compiled_program(executable: "Executable") -> CompiledProgram:
    """Return the compiled program of an executable that was read, and proved in doing so."""
    return CompiledProgram(
        executable.program,
        executable.machine,
        code_memory=executable.code_memory,
        over_memory=executable.over_memory,
        sources=executable.sources,
        options=executable.options,
        fingerprint=executable.fingerprint,
        parameter_names=executable.parameter_names,
        is_proved=True,
    )
