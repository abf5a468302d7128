"""Figures over many flights: the flights on all cores, and shares and means with their intervals and bars."""
