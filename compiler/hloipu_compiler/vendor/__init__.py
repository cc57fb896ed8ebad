"""Custom calls of vendors' libraries as ops of HLO."""
