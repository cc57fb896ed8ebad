"""What `hloipu check` does beside comparing arrays: ops alone, steps, and a time for all of it."""
