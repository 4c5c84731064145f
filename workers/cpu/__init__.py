"""The cpu device: Triton's interpreter, made to run what was written for a GPU."""
