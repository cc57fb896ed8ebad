"""Programs that fit in place of ones that do not: attempts, and which options they take."""
