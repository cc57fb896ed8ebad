"""What `hloipu show --json` prints: schema `hloipu.show/1`."""

from hloipu_compiler.analysis.summary import Summary


def summary_record(summary: Summary) -> dict[str, object]:
    """Return the summary as JSON data; numbers that data decides are null beside their bound."""
    work = summary.tally
    return {
        "schema": "hloipu.show/1",
        "module": summary.module.name,
        "instructions": summary.module.instruction_count,
        "computations": len(summary.module.computations),
        "parameters": [
            {
                "number": row.number,
                "name": row.name,
                "path": row.path,
                "shape": str(row.shape),
                "bytes": row.bytes,
                "role": row.role or None,
            }
            for row in summary.parameters
        ],
        "output_bytes": summary.output_bytes,
        "total": work.total._asdict() if work.exact else None,
        "lower_bound": work.total._asdict(),
        "ops": [
            {
                "opcode": row.opcode,
                "instructions": row.instructions,
                "runs": row.runs.count if row.runs.exact else None,
                "runs_at_least": row.runs.count,
                "exact": row.exact,
                "work_at_least": row.cost._asdict(),
            }
            for row in work.opcodes
        ],
        "unknown_loops": [
            {
                "name": loop.instruction.name,
                "computation": loop.computation.name,
                "work_per_trip": loop.cost_per_trip._asdict(),
            }
            for loop in work.unknown_loops
        ],
        "data_decided_branches": work.data_decided_branches,
        "opaque_custom_calls": dict(work.opaque_calls),
        "largest_tensors": [
            {
                "name": row.name,
                "computation": row.computation,
                "opcode": row.opcode,
                "shape": str(row.shape),
                "bytes": row.bytes,
                "source": row.source or None,
            }
            for row in summary.largest
        ],
        "source_lines": [
            {
                "source": row.source,
                "instructions": row.instructions,
                "exact": row.exact,
                "work_at_least": row.cost._asdict(),
            }
            for row in summary.source_lines
        ],
    }
