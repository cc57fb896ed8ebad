"""Runs cases in worker processes and watches their time."""

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tools.fuzzing.trial import Outcome

ROOT = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 5.0
"""Over the allowed processor time, for a machine that does other work too."""
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case."""

    case: str
    outcome: Outcome
    characters: int = 0
    repro: str = ""


class Worker:
    """One child; replaced when it dies or has to be ended."""

    def __init__(
        self, seed: int, folders: Sequence[Path], program: str = "tools.fuzzing.worker"
    ) -> None:
        self._command = [
            sys.executable,
            "-m",
            program,
            str(seed),
            *map(str, folders),
        ]
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def run(self, case: str) -> Result:
        """Run one case, such as "part 17"."""
        fresh = self._child is None
        child = self._child or self._start()
        assert child.stdin is not None
        child.stdin.write(f"{case}\n".encode())
        child.stdin.flush()
        try:
            begun = self._line(START_SECONDS if fresh else START_SECONDS / 2)
            answer = self._line(4 * begun["seconds_allowed"] + GRACE_SECONDS)
            if "repro" in answer or answer["kind"] == "hang":
                return Result(case, _outcome(answer), answer["characters"], answer.get("repro", ""))
            return Result(case, _outcome(answer), answer["characters"])
        except TimeoutError:
            self.close()
            return Result(case, Outcome("hang", "no answer in time"))
        except EOFError:
            code = child.wait()
            self.close()
            return Result(case, Outcome("died", f"the process ended with {code}"))

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    stream.close()
        self._child, self._buffer = None, b""

    def _start(self) -> "subprocess.Popen[bytes]":
        self._child = subprocess.Popen(
            self._command, cwd=ROOT, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._child

    def _line(self, seconds: float) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                piece = self._child.stdout.read(65536)
                if not piece:
                    raise EOFError
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _outcome(answer: dict[str, Any]) -> Outcome:
    return Outcome(answer["kind"], answer["detail"], answer["seconds"])


def run(
    seed: int,
    folders: Sequence[Path],
    cases: Iterable[str],
    workers: int,
    program: str = "tools.fuzzing.worker",
) -> Iterator[Result]:
    """Yield the result of each case, in no order; `program` is the module that workers run."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for case in cases:
        waiting.put(case)
    done: SimpleQueue[Result | None] = SimpleQueue()

    def serve() -> None:
        worker = Worker(seed, folders, program)
        while not waiting.empty():
            case = waiting.get()
            result = worker.run(case)
            if result.outcome.kind == "hang":  # a machine that stood still hangs once, a bug twice
                result = worker.run(case)
            done.put(result)
        worker.close()
        done.put(None)

    with ThreadPoolExecutor(workers) as threads:
        for _ in range(workers):
            threads.submit(serve)
        running = workers
        while running:
            result = done.get()
            if result is None:
                running -= 1
            else:
                yield result
