"""Remote copies go where their data is needed, and nowhere else."""

from hloipu_compiler.lowering.core.late_copies import early_parts, late_copies
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Repeat, Sequence, Step, Sync
from tests.support.program_builder import ProgramBuilder, rows

MACHINE = load_machine("tiny")
"""An access takes 100 ns, in which 200 bytes come or 100 go."""
LARGE, SMALL = (64,), (16,)


class Steps:
    """Variables on tiles and beside them, and steps on these."""

    def __init__(self) -> None:
        self.make = ProgramBuilder()
        self.value = self.make.value_like(self.tile())

    def tile(self, shape: tuple[int, ...] = LARGE) -> int:
        return self.make.variable(shape, rows(1, shape[0]))

    def remote(self, shape: tuple[int, ...] = LARGE) -> int:
        return self.make.variable(shape, rows(1, shape[0]), role=Role.REMOTE)

    def copy(self, source: int, destination: int) -> RemoteCopy:
        return RemoteCopy(source, destination, self.value)

    def work(self, *variables: int) -> Step:
        with self.make.block() as steps:
            self.make.held.update(dict.fromkeys(variables, self.value))
            self.make.add(variables[:-1], variables[-1])
        return steps[0]

    def late(self, *steps: Step) -> list[Step]:
        return late_copies(steps, self.make.variables, MACHINE)


def test_a_fetch_waits_for_what_reads_it_and_a_store_for_nothing() -> None:
    x = Steps()
    far, near, other, made = x.remote(), x.tile(), x.tile(), x.tile()
    fetch, store = x.copy(far, near), x.copy(made, far)
    idle, work, after = x.work(other, other), x.work(near, made), x.work(other, other)
    assert x.late(fetch, idle, work, after, store) == [idle, fetch, work, store, after]


def test_a_fetch_does_not_pass_a_store_to_the_same_place() -> None:
    x = Steps()
    far, near, made = x.remote(), x.tile(), x.tile()
    fetch, store, work = x.copy(far, near), x.copy(made, far), x.work(near, near)
    assert x.late(fetch, store, work) == [fetch, store, work]
    assert x.late(store, fetch, work) == [store, fetch, work]


def test_steps_inside_of_others_count() -> None:
    x = Steps()
    far, near, other = x.remote(), x.tile(), x.tile()
    fetch, idle = x.copy(far, near), x.work(other, other)
    loop = Repeat(3, Sequence((x.work(near, other),)), ())
    assert x.late(fetch, idle, loop, idle) == [idle, fetch, loop, idle]


def test_a_barrier_stays_with_the_step_behind_it() -> None:
    x = Steps()
    far, near, other, made = x.remote(), x.tile(), x.tile(), x.tile()
    fetch, store = x.copy(far, near), x.copy(made, far)
    idle, work = x.work(other, other), x.work(near, made)
    first, second, third = Sync(1), Sync(1), Sync(1)
    found = x.late(fetch, first, idle, second, work, third, idle, store)
    assert found == [first, idle, fetch, second, work, store, third, idle]


def test_small_copies_stay_together() -> None:
    x = Steps()
    far, near, other = x.remote(SMALL), x.tile(SMALL), x.tile()
    steps = [x.copy(far, near), x.work(other, other), x.work(near, near), x.copy(near, far)]
    assert x.late(*steps) == steps


def test_parts_come_as_early_as_what_they_touch_allows() -> None:
    x = Steps()
    gradients, totals = [x.tile() for _ in range(2)], [x.tile() for _ in range(2)]
    made = [x.work(g, g) for g in gradients]
    read = x.work(gradients[0], x.tile())
    additions = [x.work(g, total) for g, total in zip(gradients, totals, strict=True)]
    free = x.work(x.tile(), x.tile())
    steps = [*made, read, additions[0], free, additions[1]]
    found = early_parts(steps, [range(3, 4), range(4, 5), range(5, 6)])
    assert found == [free, made[0], made[1], additions[1], read, additions[0]]


def test_parts_that_share_something_keep_their_order() -> None:
    x = Steps()
    a, b, c, d = (x.tile() for _ in range(4))
    made, other = x.work(a, a), x.work(d, d)
    copy, use = x.work(a, b), x.work(b, c)
    assert early_parts([made, other, copy, use], [range(2, 3), range(3, 4)]) == [
        made, copy, use, other,
    ]  # fmt: skip
    assert early_parts([made, other], []) == [made, other]


def test_parts_do_not_wait_for_what_comes_after_them() -> None:
    x = Steps()
    gradient, total, count = x.tile(), x.tile(), x.tile()
    made, other = x.work(gradient, gradient), x.work(total, total)
    addition, counted = x.work(gradient, count, total), x.work(count, count)
    steps = [made, other, addition, counted]
    assert early_parts(steps, [range(2, 3)]) == steps
    steps = [made, counted, addition, counted]
    assert early_parts(steps, [range(2, 3)]) == steps
    assert early_parts([made, other, addition, counted], [range(2, 3), range(3, 4)]) == [
        made, other, addition, counted,
    ]  # fmt: skip


def test_fetches_for_one_step_keep_their_order() -> None:
    x = Steps()
    ends = [(x.remote(), x.tile()) for _ in range(3)]
    fetches = [x.copy(*pair) for pair in ends]
    other, target = x.tile(), x.tile()
    idle = x.work(other, other)
    work = [x.work(ends[2][1], target), x.work(ends[0][1], ends[1][1], target)]
    found = x.late(*fetches, idle, *work)
    assert found == [idle, fetches[2], work[0], fetches[0], fetches[1], work[1]]
