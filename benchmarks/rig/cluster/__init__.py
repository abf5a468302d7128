"""The backend `verl` beside `local`: whole trainings and their verdicts, and what its parts take."""
