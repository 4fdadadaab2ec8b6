"""Other job queues, measured beside batchq. `benchmarks/compare.py` is the command.

Modules of this package run in two places: the driver's side (environments, fleet, questions, report) in batchq's own
environment; `child`, `job` and one file of `adapters` in that of the system measured. Those three need nothing but the
standard library and that system.
"""
