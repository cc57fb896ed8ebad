"""Which of many ways to cut a step a machine takes best to, by estimate and without compiling."""
