"""`python -m research`: the same as the command `ajet`."""

from research.main import main

main()
