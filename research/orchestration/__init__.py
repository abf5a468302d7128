"""Prefect: native flow, task rows projected. All but `server` and `supervision` import it, which may not be here."""
