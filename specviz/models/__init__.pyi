from .causal import CausalLM
from .ngram import NgramModel
from .protocol import KVCache, LanguageModel
from .seq2seq import Seq2SeqLM
from .table import TableModel

__all__ = ["CausalLM", "KVCache", "LanguageModel", "NgramModel", "Seq2SeqLM", "TableModel"]
