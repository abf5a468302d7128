"""Inquiries of several rounds judged by the shipped verdict alone: what is true, who asks, how it is judged, counts."""
