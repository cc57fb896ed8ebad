"""The host's copy of a training's state, fetched from the device on demand."""

import threading
from typing import TYPE_CHECKING

from hloipu_runtime.arguments import State
from hloipu_runtime.errors import HostError, UsageError
from hloipu_runtime.session.session import Session

if TYPE_CHECKING:
    from hloipu.hosts import HostsSession


class HostState:
    """State and the steps that it has seen; while a training goes on, those of its session."""

    def __init__(self, arrays: State | None) -> None:
        self.steps: int = 0
        """Steps done, those of the training that goes on included."""
        self._arrays = arrays
        self._steps_of_arrays = 0
        self._session: Session | HostsSession | None = None
        self._steps_before = 0
        self._is_newer = False
        """Whether the device has done steps since the copy, and does none now."""
        self._lock = threading.Lock()

    def arrays(self) -> State | None:
        """Return the copy; the device's newest whole state, unless a run is going on now."""
        with self._lock:
            if self._session is not None and self._is_newer:
                self._take(self._session)
            return self._arrays

    def give(self, arrays: State | None, steps: int | None = None) -> None:
        """Put other arrays in its place; UsageError E2062 while the device holds the state."""
        if self._session is not None:
            raise UsageError(
                "E2062",
                "the state is given while a training goes on, whose device holds it",
                hint="set stop_training, and give the state in on_train_end or after fit",
            )
        self._arrays = arrays
        self.steps = self._steps_of_arrays = self.steps if steps is None else steps

    def begin(self, session: "Session | HostsSession") -> None:
        """Count from here what this session trains; UsageError E2065 while another one does."""
        if self._session is not None:
            raise UsageError(
                "E2065",
                "fit is called while the trainer trains, by a callback or another thread",
                hint="call it when the other fit has ended, or use a trainer of its own",
            )
        self._session, self._steps_before = session, self.steps
        self._steps_of_arrays = self.steps

    def run_begins(self) -> None:
        """Leave the state to the device."""
        with self._lock:
            self._is_newer = False

    def run_ended(self, session: "Session | HostsSession") -> None:
        """Count the steps; the copy is made when it is asked for."""
        self.steps = self._steps_before + session.steps
        self._is_newer = True

    def end(self, session: "Session | HostsSession") -> None:
        """Take the last copy; where a failure left no state, the previous one stays."""
        with self._lock:
            try:
                self._take(session)
            except (UsageError, HostError):
                self.steps = self._steps_of_arrays
            self._session = None

    def _take(self, session: "Session | HostsSession") -> None:
        self._arrays = session.state()
        self.steps = self._steps_of_arrays = self._steps_before + session.steps
        self._is_newer = False
