"""Pages on which studies are followed, reviewed and steered."""
