"""What the benchmarks share: options and result files (`frame`), and what they measure with."""
