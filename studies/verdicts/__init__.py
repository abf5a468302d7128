"""From runs and a locked rule to a claim."""
