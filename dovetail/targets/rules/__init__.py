"""Built-in rules: one file per kind of hardware, discovered automatically.

Rules never name a model; they decide by `config_size`. They leave precision alone, since it is
part of a run's identity, and kernels, since those are selected by platform.
"""
