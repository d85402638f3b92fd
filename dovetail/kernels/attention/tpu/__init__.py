"""Attention kernels for TPUs: JAX's splash, and our own for the chunks of a ring."""
