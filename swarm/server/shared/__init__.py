"""What the whole server reads: its state, keys, folder, clock, events and the gate of generation.

May enter: what belongs to no one concern of the server and knows none of its other packages. What one package alone
needs stays there.
"""
