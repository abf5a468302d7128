"""Records: the nouns of a study as frozen, validated values, and what follows from them alone.

May enter: frozen values and functions of them, without files, a database or statistics. What happened to a study, and
its state, are in `studies.log`.
"""
