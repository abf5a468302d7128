"""The tables: their schema, the changes that are written, and how each becomes rows."""
