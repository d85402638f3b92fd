"""One rule a kind of hardware, each in a file of its own, found by being there.

None names a model or its size; they ask specs how large an experiment is. A precision is part of a
run's identity, and kernels choose by platform, so these rules leave both alone.
"""
