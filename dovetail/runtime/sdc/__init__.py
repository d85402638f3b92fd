"""Silent data corruption: a device computes a wrong result and reports no error.

`Preflight` tests every device and link before the first step. `RepeatSteps` computes some steps
twice, the second time on other devices, and compares the results bit for bit.
"""
