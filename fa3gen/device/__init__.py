"""The library that generated kernels are written with: plain CuTe DSL, which knows nothing of variants or YAML."""
