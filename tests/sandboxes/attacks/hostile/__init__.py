"""What an attacker runs inside a container: the standard library only, one attempt a function."""
