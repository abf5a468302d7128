"""What lies in a client image at /opt/ajet: run inside containers, by any Python from 3.9, with no package."""
