"""Silent data corruption: a device that computes a wrong result and says nothing.

`Preflight` tests every device and link before the first step. `RepeatSteps` computes a step twice
from time to time, the second time on other devices, and compares the results bit for bit.
"""
