"""Results: what an attempt left behind, checked, hashed and measured. Nothing here starts or ends anything.

May enter: what reads, hashes and measures the files of an attempt. What starts and ends processes is in
`research.attempts`; what is computed from several runs is in `research.noise` (noise) or `studies` (all else). A new
way for a run to fail needs a code in `failure_codes.py`.
"""
