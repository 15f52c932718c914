from .causal import CausalLM
from .ngram import NgramModel
from .protocol import KVCache, LanguageModel
from .seq2seq import Seq2SeqLM
from .table import TableModel
from .zoo import load_model, load_pair

__all__ = ["CausalLM", "KVCache", "LanguageModel", "NgramModel", "Seq2SeqLM", "TableModel", "load_model", "load_pair"]
