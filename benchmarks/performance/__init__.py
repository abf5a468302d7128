"""`docs/performance.md`: what the benchmarks measured last, their headline figures, and how these were before.

`results` reads the result files, `headlines` picks the figures that are followed from version to version, `history`
keeps them, each function of the `..._sections` modules writes one section, `catalogue` lists the benchmarks, and `page`
puts the page together. Nothing is measured here: `benchmarks/run_all.py` runs the benchmarks.
"""
