from . import drafters, equivalence, models, plots, rules, speedup, steps, widgets, zoo
from .decoding import autoregress, rounds, speculate
from .drafters.layer_skip import LayerSkip
from .drafters.prompt_lookup import PromptLookup
from .models.causal import CausalLM
from .models.ngram import NgramModel
from .models.seq2seq import Seq2SeqLM
from .models.table import TableModel
from .randomness import Exhaustive, Scripted, Seeded
from .sampling import SamplingParams
from .streaming import stream
from .trace import Round, Trace
from .zoo.pairs import load_pair

__all__ = [
    "CausalLM", "Exhaustive", "LayerSkip", "NgramModel", "PromptLookup", "Round", "SamplingParams", "Scripted",
    "Seeded", "Seq2SeqLM", "TableModel", "Trace", "autoregress", "drafters", "equivalence", "load_pair", "models",
    "plots", "rounds", "rules", "speculate", "speedup", "steps", "stream", "widgets", "zoo",
]
