"""XLA as a judge: a child process that parses, verifies, prints, compiles and runs HLO text.

    with Oracle() as oracle:
        oracle.parse(text).accepted
        oracle.verify(text)             # Verdict(status="refused", message="Implicit broadcast…")
        oracle.run(text, [x, w])        # list of arrays, bf16 and f8 as ml_dtypes

A child that dies or hangs is replaced, and the verdict is "crashed" or "hung".
"""

import importlib.util
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from tests.support import wire

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]
DEVICES = "--xla_force_host_platform_device_count"


def available() -> bool:
    """Whether jaxlib is installed."""
    return importlib.util.find_spec("jaxlib") is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What XLA did with a text: accepted, refused, unparsed, crashed, hung or unavailable."""

    status: str
    message: str = ""
    reply: Mapping[str, Any] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether XLA took it."""
        return self.status == "accepted"


class OracleError(Exception):
    """XLA refused or crashed where an answer was needed; the verdict says how."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.status}: {verdict.message}")
        self.verdict = verdict


class Oracle:
    """A child process that is started on the first question and again after a crash."""

    def __init__(self, *, timeout_seconds: float = 60.0, devices: int = 8) -> None:
        self.timeout_seconds = timeout_seconds
        self.devices = devices
        self.restarts = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._loaded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._stderr):
                if stream is not None:
                    stream.close()
            self._process = None

    # ---- questions --------------------------------------------------------------------------
    def parse(self, text: str) -> Verdict:
        """Ask XLA's parser; it verifies nothing."""
        return self._ask({"op": "parse", "text": text})

    def verify(self, text: str) -> Verdict:
        """Ask XLA's HLO verifier (layouts ignored, no mixed precision); "unparsed" comes first."""
        verdict = self._ask({"op": "verify", "text": text})
        if verdict.status == "refused":
            return Verdict("unparsed", verdict.message)
        if verdict.accepted and not verdict.reply["verified"]:
            return Verdict("refused", verdict.reply["message"])
        return verdict

    def reprint(self, text: str, *, metadata: bool = True, constants: bool = True) -> str:
        """Return XLA's full print of a text; large constants are elided with `constants` off."""
        message = {"op": "reprint", "text": text, "metadata": metadata, "constants": constants}
        answer = self._need(message)
        printed: str = answer.reply["text"]
        return printed

    def time_parse(self, text: str, repeats: int) -> list[float]:
        """Return the seconds of processor time of each of `repeats` parses."""
        seconds: list[float] = self._need(
            {"op": "time_parse", "text": text, "repeats": repeats}
        ).reply["seconds"]
        return seconds

    def load(
        self, text: str, *, replicas: int = 1, partitions: int = 1, optimised: bool = False
    ) -> "Program":
        """Compile a text for XLA:CPU.

        Several partitions go through XLA's SPMD partitioner, which refuses `partition-id` outside
        of manually sharded regions; replicas have no such limit.
        """
        self._loaded += 1
        message = {"op": "load", "text": text, "program": self._loaded, "replicas": replicas,
                   "partitions": partitions, "optimised": optimised}  # fmt: skip
        reply = self._need(message).reply
        return Program(self, self._loaded, reply["seconds"], reply["optimised"])

    def run(self, text: str, inputs: Sequence[Array]) -> list[Array]:
        """Compile and run a text on one device; the outputs in tuple order."""
        program = self.load(text)
        try:
            return program.run(inputs)
        finally:
            program.unload()

    # ---- transport --------------------------------------------------------------------------
    def _need(self, message: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Verdict:
        verdict = self._ask(message, arrays)
        if not verdict.accepted:
            raise OracleError(verdict)
        return verdict

    def _ask(self, message: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Verdict:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        assert self._stderr is not None
        try:
            wire.write_message(process.stdin, message, arrays)
            answer = wire.read_message(Deadline(process.stdout, self.timeout_seconds))
        except TimeoutError:
            self.close()
            return Verdict("hung", f"no answer in {self.timeout_seconds} s")
        except BrokenPipeError:
            answer = None
        if answer is None:
            process.wait()
            self._stderr.seek(0)
            said = self._stderr.read().decode(errors="replace")
            self.close()
            return Verdict("crashed", said[-2000:])
        reply, outputs = answer
        for status in ("refused", "unavailable"):
            if status in reply:
                return Verdict(status, reply[status])
        return Verdict("accepted", "", reply, tuple(outputs))

    def _start(self) -> "subprocess.Popen[bytes]":
        flags = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}={self.devices}".strip()
        quiet = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.xla_child"],
            cwd=ROOT, env={**os.environ, **quiet}, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
        )  # fmt: skip
        self.restarts += 1
        return self._process


class Deadline:
    """A pipe whose reads together must end within a time; raises TimeoutError."""

    def __init__(self, stream: IO[bytes], seconds: float) -> None:
        self._descriptor = stream.fileno()
        self._end = time.monotonic() + seconds

    def read(self, count: int) -> bytes:
        """Read `count` bytes, or fewer at the end of the stream."""
        pieces = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while count > 0:
                if not selector.select(max(0.0, self._end - time.monotonic())):
                    raise TimeoutError
                piece = os.read(self._descriptor, min(count, 1 << 20))
                if not piece:
                    break
                pieces.append(piece)
                count -= len(piece)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled text in an oracle's child; gone when the child crashes."""

    oracle: Oracle
    number: int
    compile_seconds: float
    optimised_text: str

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on one device."""
        return self.timed(inputs)[0]

    def timed(self, inputs: Sequence[Array]) -> tuple[list[Array], float]:
        """Run on one device; the outputs and the seconds inside XLA."""
        answer = self.oracle._need({"op": "execute", "program": self.number}, inputs)
        return list(answer.arrays), answer.reply["seconds"]

    def run_each(self, inputs_of_device: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Run on all replicas x partitions; one list of outputs for each device."""
        flat = [array for inputs in inputs_of_device for array in inputs]
        answer = self.oracle._need({"op": "execute", "program": self.number}, flat)
        count = len(answer.arrays) // answer.reply["devices"]
        return [list(answer.arrays[i : i + count]) for i in range(0, len(answer.arrays), count)]

    def unload(self) -> None:
        """Free the program in the child."""
        self.oracle._ask({"op": "unload", "program": self.number})
