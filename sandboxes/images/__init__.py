"""Images: what containers run in, made of a base image and checked files only, named by what they hold.

May enter: how an image is made of files and packages. Which image this installation's clients run in is decided in
`research/isolation/client_image.py`; what of ours runs inside it is in `sandboxes.inside`.
"""

from sandboxes.images.base import BUILD_LABEL, Base, identity, inspect
from sandboxes.images.extra import derived_image
from sandboxes.images.light import PACKAGES_REPOSITORY, ClientContext, Image, Note, client_image

__all__ = [
    "BUILD_LABEL",
    "PACKAGES_REPOSITORY",
    "Base",
    "ClientContext",
    "Image",
    "Note",
    "client_image",
    "derived_image",
    "identity",
    "inspect",
]
