"""Runs every kernel of a bundle over the cases that its family must pass.

``cases`` says what is run and needs no torch; ``inputs`` makes the tensors; ``numerics`` and ``behaviour`` are the
checks; ``run`` goes through kernels and cases; ``sanitizer`` does so under compute-sanitizer; ``process`` holds checks
that need a process of their own.
"""
