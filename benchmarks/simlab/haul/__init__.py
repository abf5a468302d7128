"""The long haul: one study over many simulated days while all around it breaks, beside the same one at peace."""
