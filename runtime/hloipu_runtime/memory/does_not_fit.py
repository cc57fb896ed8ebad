"""The error of a program that needs more memory than its tiles have."""

from collections.abc import Callable, Sequence

from hloipu_runtime.errors import HloipuError
from hloipu_runtime.memory.categories import CODE, Category
from hloipu_runtime.memory.report_records import MemoryReport
from hloipu_runtime.report.change import CODE_CURE

_SHOWN = 3
_EXCHANGES = Category.EXCHANGE_CODE.value
_GO_ON = "--over-memory=allow continues"


class DoesNotFit(HloipuError):
    """A tile needs more memory than it has (E1001), or more for code than code may use (E1002).

    Or what lies in remote buffers is more than the memory beside an IPU holds (E1003).
    """

    exit_code = 5

    def __init__(self, report: MemoryReport, advice: Sequence[str] = ()) -> None:
        peak, use = report.peak, report.fullest_beside
        if peak.total_bytes > report.available_bytes:
            code, name = "E1001", f" ({peak.step_name})" if peak.step_name else ""
            largest = "".join(
                f"; {c.name} {c.element_type}{list(c.shape)} takes {c.size_bytes:,}"
                + (f" ({c.source})" if c.source else "")
                for c in report.culprits[:_SHOWN]
            )
            codes = peak.parts[Category.EXCHANGE_CODE]
            if 2 * codes > report.available_bytes and report.exchange_culprits:
                most = report.exchange_culprits[0]
                largest = (
                    f"; code of exchanges takes {codes:,}, of these {most.size_bytes:,} for "
                    f"{most.origin}{largest}"
                )
            message = (
                f"tile {peak.tile} of IPU {peak.ipu} needs {peak.total_bytes:,} bytes of "
                f"{report.available_bytes:,} at {peak.step}{name}{largest}"
            )
            otherwise = _GO_ON
            hint = f"split the model over more IPUs or use a smaller batch; {otherwise}"
        elif use.remote_bytes > report.remote_available_bytes:
            parts = ", ".join(f"{kind.value} {size:,}" for kind, size in use.remote.items())
            code, otherwise = "E1003", _GO_ON
            message = (
                f"remote buffers of IPU {use.ipu} need {use.remote_bytes:,} bytes of "
                f"{report.remote_available_bytes:,} ({parts})"
            )
            hint = f"keep less there (--offload off), or split the model over more IPUs; {_GO_ON}"
        else:
            code, peak = "E1002", report.code_peak
            sizes = sorted(
                ((peak.parts[category], category.value) for category in CODE), reverse=True
            )
            culprits = report.exchange_culprits[:1] if sizes[0][1] == _EXCHANGES else ()
            added = "".join(
                f"; exchanges for {culprit.origin} take {culprit.size_bytes:,}"
                for culprit in culprits
            )
            message = (
                f"tile {peak.tile} of IPU {peak.ipu} needs {report.code_bytes:,} bytes for code, "
                f"{report.code_bytes - report.executable_bytes:,} more than the "
                f"{report.executable_bytes:,} that code may take: "
                f"{', '.join(f'{name} {size:,}' for size, name in sizes)}{added}"
            )
            otherwise = f"--no-code-memory leaves code out of the count; {_GO_ON}"
            hint = f"{CODE_CURE}; {otherwise}"
        if advice:
            hint = "; ".join((*advice, otherwise))
        super().__init__(code, message, hint=hint)
        self.report = report


def require_fit(report: MemoryReport, advice: Callable[[], Sequence[str]] = lambda: ()) -> None:
    """Raise DoesNotFit for a program that does not fit; `advice` is what would make it fit."""
    if not report.fits:
        raise DoesNotFit(report, advice())
