"""A module for each page: what it shows, as values for its template."""
