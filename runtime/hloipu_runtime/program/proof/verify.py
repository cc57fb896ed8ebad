"""The verifier of programs: on every path, tiles hold what vertices read.

An abstract run over the tree. Its state says which value each variable holds, all of its mapped
parts written. Parts are compared as descriptors, dimension by dimension, so the work grows with the
number of steps and not with tiles.
"""

from typing import NamedTuple

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.descriptors import (
    is_complete,
    law_fault,
    residency_fault,
    variable_faults,
)
from hloipu_runtime.program.faults import Fault, ProgramError
from hloipu_runtime.program.program import Array, Program, Variable
from hloipu_runtime.program.proof.barriers import barrier_faults
from hloipu_runtime.program.proof.collectives import collective_faults, remote_faults
from hloipu_runtime.program.proof.exchanges import exchange_faults
from hloipu_runtime.program.proof.roles import role_faults
from hloipu_runtime.program.uses import written

State = dict[s.VariableId, s.ValueId]
_Arguments = tuple[tuple[s.VariableId, s.ValueId], ...]


class _Proved(NamedTuple):
    """A function that was walked."""

    arguments: _Arguments
    end: State


def verify(program: Program, tiles_per_ipu: int) -> None:
    """Prove a program; ProgramError E4050 lists what does not hold."""
    faults = faults_of(program, tiles_per_ipu)
    if faults:
        raise ProgramError(faults)


def faults_of(program: Program, tiles_per_ipu: int) -> list[Fault]:
    """Return everything that keeps a program from being proved."""
    proof = _Proof(program)
    proof.check_variables(tiles_per_ipu)
    if not proof.faults:
        state = {v: value for v, (value, _) in program.constants.items()}
        proof.begin(state)
        proof.walk(program.body, state, "body")
        proof.end(state)
        proof.check_streams()
    if not proof.faults:
        # Only of descriptors that do fit can be said who takes part, and for how long.
        proof.faults += (
            Fault("role", *place_and_message) for place_and_message in role_faults(program)
        )
        proof.faults += barrier_faults(program)
    return proof.faults


class _Proof:
    """The abstract run, and what it found."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.faults: list[Fault] = []
        self.defined: set[s.ValueId] = {value for value, _ in program.constants.values()}
        self.functions: dict[str, _Proved] = {}
        """By name, what holds of each function that was called."""
        self.walking: set[str] = set()
        """Functions that are being walked: none may call itself."""
        self.given: set[str] = set()
        """Streams that steps hand to the host."""
        queued = (stream for queue in program.queues for stream in queue.streams)
        ports = (*program.parameters, *program.results, *queued)
        self.carried_types = {port.stream: port.element_type for port in ports}

    def fault(self, rule: str, place: str, message: str) -> None:
        self.faults.append(Fault(rule, place, message))

    def check_variables(self, tiles_per_ipu: int) -> None:
        self._check_constants()
        if not self.program.has_places:
            self.fault("grid", "places", "are not one for each IPU, apart, and in the system")
        for place, message in remote_faults(self.program):
            self.fault("remote", place, message)
        if self.program.stacks:
            from hloipu_runtime.program.proof.stacks import stack_faults

            for place, message in stack_faults(self.program):
                self.fault("stack", place, message)
        if self.program.partitioning is not None:
            from hloipu_runtime.program.proof.blocks import block_faults

            for place, message in block_faults(self.program):
                self.fault("stack", place, message)
        for variable in self.program.variables:
            for message in variable_faults(variable.mapping, variable.shape, tiles_per_ipu):
                self.fault("grid", variable.name, message)
            if not 0 <= variable.ipu < self.program.ipus:
                self.fault("grid", variable.name, f"lies on IPU {variable.ipu}, which is not there")

    def _check_constants(self) -> None:
        """Check that what is loaded is still there in the next run, and the same for a value."""
        steps = (self.program.body, *self.program.functions.values())
        changed = frozenset[s.VariableId]().union(*(written(body, self.program) for body in steps))
        for number in sorted(changed & self.program.constants.keys()):
            self.fault("constant", self.variable(number).name, "is a constant, and is written")
        arrays: dict[s.ValueId, Array] = {}
        for number, (value, array) in self.program.constants.items():
            first = arrays.setdefault(value, array)
            if first is not array and first.tobytes() != array.tobytes():
                self.fault("constant", self.variable(number).name, f"is another value %{value}")

    def begin(self, state: State) -> None:
        """Bring the state to the start of a run: what the run before left there."""
        names = [port.name for port in self.program.state]
        if len(frozenset(names)) != len(names):
            self.fault("state", "state", "two variables have one name")
        for port in self.program.state:
            place = f"state {port.name}"
            if port.variable in state:
                self.fault("state", place, "its variable holds something else already")
            self.define(port.initial, place)
            self.fits(port.variable, port.initial, place)
            state[port.variable] = port.initial

    def end(self, state: State) -> None:
        """Check that the state holds, whole, what the next run is to begin with."""
        for port in self.program.state:
            place = f"end of state {port.name}"
            self.complete(port.variable, place)
            self.expect(state, port.variable, port.final, place)
            self.fits(port.variable, port.final, place)

    def check_streams(self) -> None:
        """Check that every result and every stream of an outfeed is handed out by a step."""
        queues = (queue for queue in self.program.queues if not queue.to_device)
        ports = (*self.program.results, *(port for queue in queues for port in queue.streams))
        for stream in dict.fromkeys(port.stream for port in ports):
            if stream not in self.given:
                self.fault("stream", stream, "no step hands it out")

    def variable(self, number: s.VariableId) -> Variable:
        return self.program.variables[number]

    def define(self, value: s.ValueId, place: str) -> None:
        if value in self.defined:
            self.fault("value", place, f"value %{value} is computed twice")
        self.defined.add(value)

    def expect(self, state: State, variable: s.VariableId, value: s.ValueId, place: str) -> None:
        current = state.get(variable)
        if current != value:
            content = "nothing" if current is None else f"value %{current}"
            name = self.variable(variable).name
            self.fault("version", place, f"reads value %{value} from {name}, which holds {content}")

    def complete(self, variable: s.VariableId, place: str) -> None:
        """Check that a variable from which any element may be taken has all of them."""
        record = self.variable(variable)
        if not is_complete(record.mapping, record.shape):
            self.fault("cover", place, f"{record.name} has elements on no tile")

    def fits(self, variable: s.VariableId, value: s.ValueId, place: str) -> None:
        """Check that a variable can hold a value."""
        record, meant = self.variable(variable), self.program.values[value]
        if (record.element_type, record.shape) != (meant.element_type, meant.shape):
            self.fault(
                "value", place, f"{record.name} cannot hold value %{value}: other type or shape"
            )

    def walk(self, step: s.Step, state: State, place: str) -> None:
        """Check a step and bring the state to what holds after it."""
        match step:
            case s.Sequence():
                for number, inner in enumerate(step.steps):
                    self.walk(inner, state, f"{place}/{number}")
            case s.ComputeSet():
                self._compute_set(step, state, place)
            case s.Exchange():
                for transfer in step.transfers:
                    self.complete(transfer.source, place)
                faults = exchange_faults(self.program, step, state, self.defined, place)
                self.faults += faults
                for definition in step.definitions:
                    state[definition.variable] = definition.value
            case s.Sync():
                pass  # `verify_barriers` has its rules
            case s.StreamIn():
                self._streamed(step, place)
                self.define(step.value, place)
                self.fits(step.variable, step.value, place)
                state[step.variable] = step.value
            case s.StreamOut():
                self._streamed(step, place)
                self.complete(step.variable, place)
                self.expect(state, step.variable, step.value, place)
                self.given.add(step.stream)
            case Collective():
                self._collective(step, state, place)
            case RemoteCopy():
                self.complete(step.source, place)
                self.expect(state, step.source, step.value, place)
                self.complete(step.destination, place)
                self.fits(step.destination, step.value, place)
                state[step.destination] = step.value
            case s.Parallel():
                self._parallel(step, state, place)
            case s.Repeat():
                self._enter(step.carried, state, written(step.body, self.program), place)
                self.walk(step.body, state, f"{place}/repeat")
                self._turn(step.carried, state, place)
                self._leave(step.carried, state, written(step.body, self.program), place)
            case s.Pipeline():
                self._pipeline(step, state, place)
            case s.RepeatWhile():
                self._repeat_while(step, state, place)
            case s.If():
                self.expect(state, step.predicate, step.predicate_value, place)
                self._branches(step.branches, step.merged, state, place)
            case s.Switch():
                self.expect(state, step.index, step.index_value, place)
                self._branches(step.branches, step.merged, state, place)
            case s.Call():
                self._call(step, state, place)

    def _streamed(self, step: s.StreamIn | s.StreamOut, place: str) -> None:
        record = self.variable(step.variable)
        declared_type = self.carried_types.get(step.stream, record.element_type)
        if declared_type != record.element_type:
            self.fault(
                "stream", place, f"{record.name} is {record.element_type}, not {declared_type}"
            )

    def _collective(self, step: Collective, state: State, place: str) -> None:
        for moved in step.inputs:
            self.complete(moved.variable, place)
            self.expect(state, moved.variable, moved.value, place)
        for message in collective_faults(self.program, step):
            self.fault("collective", place, message)
        for moved in step.outputs:
            self.define(moved.value, place)
            self.complete(moved.variable, place)
            self.fits(moved.variable, moved.value, place)
            state[moved.variable] = moved.value

    def _call(self, step: s.Call, state: State, place: str) -> None:
        """Check what a call hands over and takes back; the function itself is walked once."""
        body = self.program.functions.get(step.function)
        if body is None or step.function in self.walking:
            self.fault("call", place, f"cannot call function {step.function!r}")
            return
        passed = tuple((item.variable, item.inner) for item in step.arguments)
        proved = self.functions.get(step.function)
        if proved is None:
            proved = self._function(step.function, body, passed, place)
        elif proved.arguments != passed:
            self.fault("call", place, f"passes other variables to {step.function!r} than before")
        for item in step.arguments:
            self.expect(state, item.variable, item.outer, place)
            self.fits(item.variable, item.inner, place)
        for item in step.results:
            self.expect(proved.end, item.variable, item.inner, f"{place} end of {step.function!r}")
        for variable in written(body, self.program):
            state.pop(variable, None)
        for item in step.results:
            self.define(item.outer, place)
            self.fits(item.variable, item.outer, place)
            state[item.variable] = item.outer

    def _function(self, name: str, body: s.Sequence, passed: _Arguments, place: str) -> _Proved:
        """Walk a function from constants and its arguments alone: so it may be called anywhere."""
        state = {v: value for v, (value, _) in self.program.constants.items()}
        self.walking.add(name)
        for variable, value in passed:
            self.define(value, place)
            state[variable] = value
        self.walk(body, state, f"{place}/{name}")
        self.walking.remove(name)
        proved = self.functions[name] = _Proved(passed, state)
        return proved

    def _compute_set(self, step: s.ComputeSet, state: State, place: str) -> None:
        after: State = {}
        for number, group in enumerate(step.groups):
            where = f"{place}.{number} {group.name}"
            self._group(group, state, where)
            for operand, value in zip(group.outputs, group.writes, strict=True):
                if operand.variable in after:
                    self.fault(
                        "race", where, f"{self.variable(operand.variable).name} is written twice"
                    )
                after[operand.variable] = value
        for number, group in enumerate(step.groups):
            written_by_group = {operand.variable for operand in group.outputs}
            for operand in group.inputs:
                if operand.variable in after and operand.variable not in written_by_group:
                    name = self.variable(operand.variable).name
                    self.fault(
                        "race", f"{place}.{number} {group.name}", f"{name} is read and written"
                    )
        state.update(after)

    def _group(self, group: s.VertexGroup, state: State, place: str) -> None:
        variables = self.program.variables
        for operand, value in zip(group.inputs, group.reads, strict=True):
            self.expect(state, operand.variable, value, place)
            message = residency_fault(
                variables[operand.variable].mapping,
                variables[operand.variable].shape,
                group.tiles,
                operand.spans,
            )
            if message:
                self.fault("resident", place, f"{variables[operand.variable].name}: {message}")
        for operand, value in zip(group.outputs, group.writes, strict=True):
            self.define(value, place)
            self.fits(operand.variable, value, place)
            mapping = variables[operand.variable].mapping
            complete = is_complete(mapping, variables[operand.variable].shape)
            if mapping.tiles != group.tiles or mapping.spans != operand.spans or not complete:
                name = variables[operand.variable].name
                self.fault("cover", place, f"{name} is not written exactly where it lies")
        self._overwriting(group, place)
        if (
            len(
                {
                    variables[operand_part.variable].ipu
                    for operand_part in (*group.inputs, *group.outputs)
                }
            )
            > 1
        ):
            self.fault("resident", place, "operands lie on several IPUs")
        message = law_fault(
            group.codelet,
            tuple(_tensor(variables[operand_part.variable]) for operand_part in group.inputs),
            tuple(_tensor(variables[operand_part.variable]) for operand_part in group.outputs),
            tuple(operand_part.spans for operand_part in group.inputs),
            tuple(operand_part.spans for operand_part in group.outputs),
        )
        if message:
            self.fault("law", place, message)

    def _overwriting(self, group: s.VertexGroup, place: str) -> None:
        written_here = {operand.variable: n for n, operand in enumerate(group.outputs)}
        for number, operand in enumerate(group.inputs):
            result = written_here.get(operand.variable)
            if result is None:
                continue
            same = operand.spans == group.outputs[result].spans
            if result or not same or not group.codelet.may_overwrite(number):
                name = self.variable(operand.variable).name
                self.fault("race", place, f"{name} is overwritten while it is read")

    def _parallel(self, step: s.Parallel, state: State, place: str) -> None:
        before, after = dict(state), dict(state)
        from hloipu_runtime.program.proof.blocks import branch_faults

        self.faults += [
            Fault("race", place, message) for message in branch_faults(self.program, step)
        ]
        for number, branch in enumerate(step.branches):
            inner = dict(before)
            self.walk(branch, inner, f"{place}|{number}")
            for variable in written(branch, self.program):
                if variable in inner:
                    after[variable] = inner[variable]
                else:
                    after.pop(variable, None)
        state.clear()
        state.update(after)

    def _enter(
        self,
        carried: tuple[s.Carried, ...],
        state: State,
        changed: frozenset[s.VariableId],
        place: str,
    ) -> None:
        """Bring the state to the start of any iteration of a loop."""
        for item in carried:
            self.expect(state, item.variable, item.initial, place)
        for variable in changed:
            state.pop(variable, None)
        for item in carried:
            self.define(item.turn, place)
            self.fits(item.variable, item.turn, place)
            state[item.variable] = item.turn

    def _turn(self, carried: tuple[s.Carried, ...], state: State, place: str) -> None:
        """Check what an iteration hands to the next one."""
        for item in carried:
            self.expect(state, item.variable, item.following, f"{place} end of iteration")

    def _leave(
        self,
        carried: tuple[s.Carried, ...],
        state: State,
        changed: frozenset[s.VariableId],
        place: str,
    ) -> None:
        for variable in changed:
            state.pop(variable, None)
        for item in carried:
            self.define(item.final, place)
            self.fits(item.variable, item.final, place)
            state[item.variable] = item.final

    def _pipeline(self, step: s.Pipeline, state: State, place: str) -> None:
        """Walk the bodies in order, each with what its channels bring."""
        from hloipu_runtime.program.proof.pipelines import pipeline_faults

        self.faults += pipeline_faults(self.program, step, place)
        changed = written(step, self.program)
        self._enter(step.carried, state, changed, place)
        for position, stage in enumerate(step.stages):
            where = f"{place}/repeat/{position}"
            for channel in step.channels:
                if channel.consumer == position:
                    if channel.value not in self.defined:
                        self.fault("version", where, f"value %{channel.value} is not there yet")
                    self.fits(channel.destination, channel.value, where)
                    state[channel.destination] = channel.value
            self.walk(stage.first, state, f"{where}/first")
            for page in stage.paged:
                self._bring(state, page.there, page.here, where)
            self.walk(stage.body, state, where)
            for page in stage.paged:
                self._bring(state, page.here, page.there, where)
            for channel in step.channels:
                if channel.producer == position:
                    self.expect(state, channel.source, channel.value, f"{where} end")
                    self.complete(channel.source, where)
        self._turn(step.carried, state, place)
        self._leave(step.carried, state, changed, place)

    def _bring(
        self, state: State, source: s.VariableId, destination: s.VariableId, place: str
    ) -> None:
        """Bring the state to what a copy leaves, whatever the source holds."""
        self.complete(source, place)
        if source in state:
            state[destination] = state[source]
            self.fits(destination, state[source], place)
        else:
            state.pop(destination, None)

    def _repeat_while(self, step: s.RepeatWhile, state: State, place: str) -> None:
        changed = written(step.condition, self.program) | written(step.body, self.program)
        self._enter(step.carried, state, changed, place)
        self.walk(step.condition, state, f"{place}/condition")
        self.expect(state, step.predicate, step.predicate_value, place)
        for item in step.carried:
            self.expect(state, item.variable, item.turn, f"{place} after the condition")
        self.walk(step.body, state, f"{place}/while")
        self._turn(step.carried, state, place)
        self._leave(step.carried, state, changed, place)

    def _branches(
        self,
        branches: tuple[s.Sequence, ...],
        merged: tuple[s.Merged, ...],
        state: State,
        place: str,
    ) -> None:
        for number, branch in enumerate(branches):
            inner = dict(state)
            self.walk(branch, inner, f"{place}?{number}")
            for item in merged:
                self.expect(
                    inner, item.variable, item.branch_values[number], f"{place}?{number} end"
                )
        for branch in branches:
            for variable in written(branch, self.program):
                state.pop(variable, None)
        for item in merged:
            self.define(item.value, place)
            self.fits(item.variable, item.value, place)
            state[item.variable] = item.value


def _tensor(variable: Variable) -> Tensor:
    return Tensor(variable.element_type, variable.shape)
