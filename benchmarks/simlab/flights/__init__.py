"""Flights: studies driven by the shipped loop on simulated time, sandbox and faults, and what is kept of them."""
