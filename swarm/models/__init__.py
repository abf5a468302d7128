"""Model folders as anybody may look at them: what is wrong with one, its hash, what a check measured of it.

Light: files are read, no weight is loaded, so that clients, studies and servers refuse a folder in the same words.
May enter: what can be told of a model folder without torch. Loading and measuring one is in `swarm.backends`, fetching
one in `research.models`.
"""

from swarm.models.check import ModelCheck, TemplateCheck, conditions
from swarm.models.folder import model_place, require_model_folder
from swarm.models.hashing import folder_hash

__all__ = ["ModelCheck", "TemplateCheck", "conditions", "folder_hash", "model_place", "require_model_folder"]
