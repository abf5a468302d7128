"""Model folders as anybody may look at them: what is wrong with one, its hash, its check, the card of an exported one.

Light: files are read, no weight is loaded, so that clients, studies and servers refuse a folder in the same words.
May enter: what can be told of a model folder without torch. Loading and measuring one is in `swarm.backends`, fetching
one in `research.models`.
"""

from swarm.models.check import ModelCheck, TemplateCheck, conditions
from swarm.models.folder import model_place, require_model_folder
from swarm.models.hashing import folder_hash, tokenizer_files

__all__ = [
    "ModelCheck",
    "TemplateCheck",
    "conditions",
    "folder_hash",
    "model_place",
    "require_model_folder",
    "tokenizer_files",
]
