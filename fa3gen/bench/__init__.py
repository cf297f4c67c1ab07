"""Times kernels against other implementations of attention."""
