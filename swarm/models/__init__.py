"""Model folders without torch."""

from swarm.models.card import ModelCheck, TemplateCheck, conditions
from swarm.models.folder import folder_hash, model_place, require_model_folder, tokenizer_files

__all__ = [
    "ModelCheck", "TemplateCheck", "conditions", "folder_hash", "model_place", "require_model_folder",
    "tokenizer_files",
]  # fmt: skip
