"""The topic: an English question cut into fields, values, numbers and what is left over. No planner's choices."""
