"""`docs/performance.md`: the headline figures of all benchmarks, as measured last and as they were before.

`headlines` picks them out of the result files, `page` keeps their history and writes the page. Nothing is measured
here: `benchmarks/run_all.py` runs the benchmarks.
"""
