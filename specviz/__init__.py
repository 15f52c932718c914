"""specviz: speculative decoding (Leviathan et al., ICML 2023), to be seen, proved and measured."""

from specviz.decoding import autoregress, rounds, speculate
from specviz.models.table import TableModel
from specviz.models.zoo import load_pair
from specviz.randomness import Exhaustive, Scripted, Seeded
from specviz.sampling import SamplingParams
from specviz.streaming import stream
from specviz.trace import Round, Trace

__version__ = "0.1.0"
__all__ = [
    "CausalLM",
    "Exhaustive",
    "Round",
    "SamplingParams",
    "Scripted",
    "Seeded",
    "Seq2SeqLM",
    "TableModel",
    "Trace",
    "autoregress",
    "load_pair",
    "rounds",
    "speculate",
    "stream",
]


def __getattr__(name):
    if name == "CausalLM":  # these bring transformers along, so only when asked for
        from specviz.models.causal import CausalLM

        return CausalLM
    if name == "Seq2SeqLM":
        from specviz.models.seq2seq import Seq2SeqLM

        return Seq2SeqLM
    raise AttributeError(f"module 'specviz' has no attribute {name!r}")
