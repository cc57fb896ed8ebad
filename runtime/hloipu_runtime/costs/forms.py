"""Chooses the forms of a program's exchanges: the fastest whose code fits.

All exchanges share the memory that code can lie in. What it is worth is found by raising its price
until the exchanges' code takes no more than what is left of it, as one does for a knapsack (Everett
1963: generalized Lagrange multipliers, Operations Research 11).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from copy import copy
from typing import NamedTuple

from hloipu_runtime.costs.exchange_form import ExchangeForm, exchange_form, exchange_forms
from hloipu_runtime.costs.loads import Load, peaks
from hloipu_runtime.costs.pieces import Sent, what_is_sent
from hloipu_runtime.costs.traffic import TransferTraffic, transfer_traffic
from hloipu_runtime.costs.vertex_bytes import Code, State, vertex_bytes, vertex_call_bytes
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Program

_LEAST_SHARE = 4
"""Exchanges have at least one part in so many of the memory for code. Assumed."""


def phases(program: Program) -> Iterator[tuple[s.ComputeSet | s.Exchange, int]]:
    """Yield what a program computes and exchanges, each once, and how often it runs.

    Each branch counts as taken.
    """
    callers: dict[str, list[tuple[str, int]]] = {}
    inside: dict[str, list[tuple[s.ComputeSet | s.Exchange, int]]] = {}
    for name, block in (*program.functions.items(), (_BODY, program.body)):
        here = inside[name] = []
        waiting: list[tuple[s.Step, int]] = [(block, 1)]
        while waiting:
            match waiting.pop():
                case (s.ComputeSet() | s.Exchange() as phase, times):
                    here.append((phase, times))
                case (s.Call() as call, times):
                    callers.setdefault(call.function, []).append((name, times))
                case (step, times):
                    times *= s.iterations(step)
                    waiting += ((inner, times) for inner in s.inner_steps(step))
                    if isinstance(step, s.Pipeline):
                        here.append((pushed(program, step.channels), times))
                        here.append((popped(program, step.channels), times))
    runs = {_BODY: 1}

    def runs_of(name: str) -> int:
        if name not in runs:
            runs[name] = 0  # nothing calls itself: programs that do are refused elsewhere
            runs[name] = sum(runs_of(caller) * times for caller, times in callers.get(name, ()))
        return runs[name]

    for name, here in inside.items():
        for phase, times in here:
            yield phase, times * runs_of(name)


_BODY = ""
"""Name of the program's body, beside those of its functions."""

_PRICES = tuple(1 << n for n in range(8, 17))
"""Prices to try where code takes more, in cycles for each kilobyte: 0.25 to 65 a byte."""


class Carried(NamedTuple):
    """A transfer, what it moves, and how."""

    traffic: TransferTraffic
    form: ExchangeForm


class _Choice(NamedTuple):
    """What a transfer moves, and the forms that it may take."""

    traffic: TransferTraffic
    forms: tuple[ExchangeForm, ...]


_End = tuple[int, int, int, bool, int]
"""IPU, first and last tile of one end of a transfer, whether it sends, and which forms it has."""


class Forms:
    """How each transfer of a program is carried out on a machine."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        code_memory: bool = True,
        known: "Forms | None" = None,
    ) -> None:
        """Weigh all exchanges of a program against each other; code that is not counted is free.

        `known`: those of a program with the same steps otherwise merged, if there is one.
        """
        self._program = program
        self._machine = machine
        # By identity, as there are far more of them than kinds; kept, so that it stays theirs.
        self._choices: dict[int, tuple[s.Transfer, _Choice | None]] = {}
        self._vertices: dict[int, tuple[s.VertexGroup, tuple[Code, State]]] = {}
        if known is not None and known._program.variables is program.variables:
            self._choices, self._vertices = known._choices, known._vertices
        self.price: int = self._affordable() if code_memory else 0
        """Cycles for each kilobyte of code."""
        self._smaller: Mapping[s.Transfer, ExchangeForm] = {}

    def of(self, transfer: s.Transfer) -> Carried | None:
        """Return how a transfer of the program is carried out; None where its box is empty."""
        choice = self._choice(transfer)
        if choice is None:
            return None
        form = self._smaller.get(transfer) if self._smaller else None
        return Carried(choice.traffic, form or exchange_form(choice.forms, self.price))

    def choices(self, transfer: s.Transfer) -> tuple[ExchangeForm, ...]:
        """Return all forms that a transfer may take; none where its box is empty."""
        choice = self._choice(transfer)
        return choice.forms if choice is not None else ()

    def fastest(self) -> "Forms":
        """Return the fastest forms, whatever their code takes."""
        changed = copy(self)
        changed.price, changed._smaller = 0, {}
        return changed

    @property
    def are_smaller(self) -> bool:
        """Whether some have less code than they would have at their price."""
        return bool(self._smaller)

    def with_smaller(self, smaller: Mapping[s.Transfer, ExchangeForm]) -> "Forms":
        """Return the same forms but for some transfers."""
        changed = copy(self)
        changed._smaller = {**self._smaller, **smaller}
        return changed

    def vertex_bytes(self, group: s.VertexGroup) -> tuple[Code, State]:
        """Return the code of a group's vertices, and the state of one with the largest parts."""
        kept = self._vertices.get(id(group))
        if kept is None or kept[0] is not group:
            found = vertex_bytes(self._program, group, self._machine)
            kept = self._vertices[id(group)] = group, found
        return kept[1]

    def _choice(self, transfer: s.Transfer) -> _Choice | None:
        kept = self._choices.get(id(transfer))
        if kept is None or kept[0] is not transfer:
            kept = self._choices[id(transfer)] = (transfer, self._choice_of(transfer))
        return kept[1]

    def _choice_of(self, transfer: s.Transfer) -> _Choice | None:
        variables = self._program.variables
        source, destination = variables[transfer.source], variables[transfer.destination]
        bus = self._machine.chip.tiles_per_exchange_bus
        traffic = transfer_traffic(transfer, source, destination, bus)
        if traffic is None:
            return None
        sent = what_is_sent(transfer, source, destination) if traffic.fragments else Sent(0, 0)
        return _Choice(traffic, exchange_forms(self._machine, traffic, sent))

    def _affordable(self) -> int:
        """Return the lowest price at which exchanges keep to their room in the memory for code."""
        choices: list[tuple[int, int, _Choice]] = []
        variables = self._program.variables
        steps = (inner for inner, _ in phases(self._program) if isinstance(inner, s.Exchange))
        for transfer in (t for step in steps for t in step.transfers):
            choice = self._choice(transfer)
            if choice is not None and choice.traffic.fragments:
                ends = variables[transfer.source].ipu, variables[transfer.destination].ipu
                choices.append((*ends, choice))
        kept = _kept_in_all(choices)
        if kept <= self._least_room:
            return 0
        room = self._room()
        if kept <= min(room):
            return 0
        alike = Counter(
            (ipu, tiles.first, tiles.last, is_sending, id(forms))
            for source, destination, (traffic, forms) in choices
            for ipu, tiles, is_sending in (
                (source, traffic.senders, True),
                (destination, traffic.receivers, False),
            )
        )
        forms_of = {id(choice.forms): choice.forms for _, _, choice in choices}
        if self._has_room(alike, forms_of, 0, room):
            return 0
        # The higher the price, the less transfers keep, at both ends together.
        number = bisect_left(
            _PRICES, True, key=lambda price: self._has_room(alike, forms_of, price, room)
        )
        return _PRICES[min(number, len(_PRICES) - 1)]

    @property
    def _least_room(self) -> int:
        return self._machine.memory.executable_bytes // _LEAST_SHARE

    def _room(self) -> list[int]:
        """Return the bytes for exchange code on a tile of each IPU that takes part in all."""
        program, machine = self._program, self._machine
        memory, variables = machine.memory, program.variables
        others = [0] * program.ipus
        codes: list[dict[Hashable, int]] = [{} for _ in others]
        for step, _ in phases(program):
            at_work = set()
            if isinstance(step, s.ComputeSet):
                running: Counter[int] = Counter()
                for group in step.groups:
                    touched = group.outputs or group.inputs
                    ipu = variables[touched[0].variable].ipu if touched else 0
                    code, _ = self.vertex_bytes(group)
                    codes[ipu][code.key] = code.size
                    running[ipu] += group.tiles.count
                for ipu, count in running.items():
                    vertices = over(count, machine.chip.tiles_per_ipu)
                    others[ipu] += vertices * vertex_call_bytes(machine)
            else:
                ends = {
                    v
                    for transfer in step.transfers
                    for v in (transfer.source, transfer.destination)
                }
                at_work = {variables[v].ipu for v in ends}
            for ipu in at_work:
                others[ipu] += memory.step_code_bytes + memory.instruction_bytes
        return [
            max(self._least_room, memory.executable_bytes - size - sum(sizes.values()))
            for size, sizes in zip(others, codes, strict=True)
        ]

    def _has_room(
        self,
        ends: Mapping[_End, int],
        forms_of: Mapping[int, tuple[ExchangeForm, ...]],
        price: int,
        room: list[int],
    ) -> bool:
        """Whether what exchanges take for good has room on the tiles where they take most.

        `ends`: with how many transfers have each; `forms_of`: by identity, what they choose from.
        """
        chosen = {number: exchange_form(forms, price) for number, forms in forms_of.items()}
        on_ipu: list[list[Load]] = [[] for _ in range(self._program.ipus)]
        for (ipu, first, last, is_sending, number), count in ends.items():
            form = chosen[number]
            way = form.sending if is_sending else form.receiving
            on_ipu[ipu].append(Load(first, last, (count * way.kept_bytes,)))
        return all(
            peak.amounts[0] <= most
            for loads, most in zip(on_ipu, room, strict=True)
            if loads
            for peak in peaks(loads)
        )


def _kept_in_all(choices: list[tuple[int, int, _Choice]]) -> int:
    """Return the bytes that exchanges take on all tiles together, at no price: no tile has more."""
    kept_of: dict[int, int] = {}
    total = 0
    for _, _, (_, forms) in choices:
        kept = kept_of.get(id(forms))
        if kept is None:
            kept = kept_of[id(forms)] = exchange_form(forms, 0).kept_bytes
        total += kept
    return total
