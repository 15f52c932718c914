from .layer_skip import LayerSkip
from .model import ModelDrafter
from .prompt_lookup import PromptLookup
from .protocol import Drafter, DraftSession, Proposal

__all__ = ["DraftSession", "Drafter", "LayerSkip", "ModelDrafter", "PromptLookup", "Proposal"]
