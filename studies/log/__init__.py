"""The log: events, the pure fold of them into a study's state, and who may write the next one.

May enter: what is written down of a study, by whom, and the state that follows. The values in it are in
`studies.records`; what is concluded from it is in `studies.verdicts`. To add an event: its name in `EventType`
(`event.py`), its rule in `claim_events.py`, `run_events.py` or `approval_events.py`, and the rule's line in `fold.py`.
"""
