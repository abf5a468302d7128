"""What grows with the number of clients, servers and parameters: measured at small sizes, and carried on by arithmetic.

`relay` counts bytes between a client and a server, `plays` what episodes of one shape send and store, `rows` reads what
a store holds, `weights` writes a tiny model as checkpoint and as export, `forecast` is nothing but formulas.
"""
