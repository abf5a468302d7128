"""Images: what containers run in, made of a base image and checked files only, named by what they hold."""

from sandboxes.images.base import Base, inspect
from sandboxes.images.extra import derived_image
from sandboxes.images.light import ClientContext, Image, Note, client_image, identity

__all__ = ["Base", "ClientContext", "Image", "Note", "client_image", "derived_image", "identity", "inspect"]
