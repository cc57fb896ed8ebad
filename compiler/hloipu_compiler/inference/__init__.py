"""Shape inference and shape checking: one rule per opcode, gathered in `inference.rules`."""
