"""The parts of benchmarks that others rely on: what is simulated is what it says."""
