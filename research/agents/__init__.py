"""`ajet client run`: a user's agent in the foreground."""
