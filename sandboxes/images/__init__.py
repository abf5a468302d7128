"""What containers run in."""

from sandboxes.images.build import (
    BUILD_LABEL,
    PACKAGES_REPOSITORY,
    BaseImage,
    ClientContext,
    Image,
    Note,
    client_image,
    derive_image,
    identity,
    inspect,
)

__all__ = [
    "BUILD_LABEL", "PACKAGES_REPOSITORY", "BaseImage", "ClientContext", "Image", "Note", "client_image", "derive_image",
    "identity", "inspect",
]  # fmt: skip
