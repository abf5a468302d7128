"""What all parts of a report share: its small values, its words, its colours, its files.

May enter: what several packages of the report share. What one section alone needs stays there.
"""
