"""A session's state between runs, and the positions of its feeds."""

from collections.abc import Mapping, Sequence

from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program.step_elements import takes_alike
from hloipu_runtime.session.engine import SessionEngine
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.per_host import host_of


class KeptState:
    """Whether there is a state, whether the engines have it, and how far the feeds were with it.

    `given`: of each participant, until the engines have it; None: not known yet. `taken`: elements
    of each infeed that a replica takes in a step.
    """

    def __init__(
        self,
        program: Program,
        infeeds: Sequence[InfeedQueue],
        taken: Mapping[str, int],
        given: list[dict[str, Array]] | None,
    ) -> None:
        self.program = program
        self.infeeds = infeeds
        self.given = given
        self.is_there: bool = False
        """Whether the engines have it."""
        self.lost: str = ""
        """Why there is none and will be none until another is given."""
        self._taken = taken
        self._left_at: dict[str, int] | None = None
        """After a run that failed: where each feed stood when the state was made."""

    def begin(self, states: list[dict[str, Array]]) -> None:
        """Have another state, with the feeds where they stand now."""
        self.given, self._left_at = states, None
        self.is_there, self.lost = False, ""

    def require(self, engine: SessionEngine) -> None:
        """See that the engines have the state; raises UsageError E3154 and E3156 where none is."""
        if self.lost:
            raise UsageError(
                "E3156",
                f"there is no state: {self.lost}",
                hint="begin a session, and load the last checkpoint into it",
            )
        if self.is_there:
            return
        if self.given is None:
            raise UsageError(
                "E3154",
                f"the state is not given: {len(seen_by_users(self.program).state)} arrays",
                hint="give state={name: array, …}, or load a checkpoint; on the command line "
                "--inputs FILE or --random SEED",
            )
        engine.states = self.given
        self.given, self.is_there = None, True

    def lose(self, steps: int) -> None:
        """Have none after a run that failed in the middle of a step."""
        self.lost = f"a run failed after {steps} steps and left no whole state"
        self.is_there = False

    def fell_behind(self, steps: int, begun: Mapping[str, int]) -> None:
        """Note where the feeds stood after so many whole steps of a run that failed.

        `begun`: where they stood when it began.
        """
        if takes_alike(self.program):
            each = self.each_step()
            self._left_at = {name: at + steps * each[name] for name, at in begun.items()}
        else:
            self._left_at = {} if begun else None

    def positions_now(self) -> dict[str, int]:
        """Return how many elements of each feed the device has taken."""
        return {queue.name: queue.position for queue in self.infeeds}

    def each_step(self) -> dict[str, int]:
        """Return how many elements of each feed a step takes for all replicas that are run.

        Of one host's, for its replicas. Where data decides it, at least.
        """
        alike = takes_alike(self.program)
        return {
            queue.name: self._taken[host_of(queue.name)[1]] * queue.replicas * alike
            for queue in self.infeeds
        }

    def positions(self, steps: int) -> dict[str, int]:
        """Return where the feeds stood when the state was made, after so many steps.

        Raises UsageError E3156 where data decided it.
        """
        left, now = self._left_at, self.positions_now()
        if left is None:
            return now
        if left.keys() != now.keys():
            raise UsageError(
                "E3156",
                f"a run failed after {steps} steps, and data decides how many elements of the "
                "feeds a step takes: where they stood with this state is not known",
                hint="begin a session, and load the last checkpoint into it",
            )
        return left

    def require_feeds(self, steps: int) -> None:
        """Raise UsageError E3156 where a step that failed has taken elements that are lost."""
        if self._left_at is not None and self.positions(steps) != self.positions_now():
            raise UsageError(
                "E3156",
                f"a run failed after {steps} steps and had taken elements of the next one: "
                "the feeds are ahead of the state",
                hint="save_state here, and load_state in a new session: its feeds go on with the "
                "elements of the step that failed",
            )
