"""Faults of real processes on loopback: what is killed where, and what must hold afterwards.

server_process   a swarm server that kills itself, breaks, or sees its clock jump, at a named point
points           the named points and what happens there
harness          starts such servers, plays episodes against them, and keeps the clients' books
books            compares the clients' books with what the weights hold
proxy            a network that loses, repeats, delays and reorders requests
"""
