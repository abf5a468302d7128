"""The fake backend: scripted answers and no learning, for tests of the server without torch."""
