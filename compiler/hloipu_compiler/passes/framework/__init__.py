"""Pass framework."""
