"""Parallelism and device memory."""
