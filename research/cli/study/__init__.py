"""Commands about studies: plan, run, watch, change, report, verify.

May enter: commands about studies: their options, what they print, how they exit. What they do to a study is in
`research.study`. To add one: a module here and its line in `app.py`.
"""
