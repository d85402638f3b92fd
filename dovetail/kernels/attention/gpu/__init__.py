"""Attention kernels for GPUs: cuDNN, tokamax's Mosaic GPU kernel, and our own for Triton."""
