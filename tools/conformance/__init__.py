"""Every op's values against XLA:CPU: cases, inputs, verdicts, and the table of deviations."""
