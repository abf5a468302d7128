"""What benchmarks draw and write: curves, heat maps, and the page `docs/calibration.md` with its tables and plots."""
