"""The first lines of a report: asked, tested, verdict, in practice, ask next."""
