"""Records: the nouns of a study as frozen, validated values, and what follows from them alone."""
