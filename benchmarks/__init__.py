"""Benchmarks: what compiling costs, how near plans come to the bound, and what other planners reach.

Started with ``python -m benchmarks`` from the root of the repository; see docs/benchmarks.md.
"""
