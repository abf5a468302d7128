"""Ways to generate with one model, and where the local engine spends its time."""
