"""What all parts of a report share: its small values, its words, its colours, its files."""
