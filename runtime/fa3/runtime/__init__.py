"""Attention from a bundle of precompiled kernels."""
