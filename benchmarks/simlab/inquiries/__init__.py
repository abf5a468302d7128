"""Whole inquiries flown by the shipped loop: who asks on, and what came of all rounds together."""
