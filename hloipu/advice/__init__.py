"""Changes of options and of the model, each tried by compiling with it."""
