"""Language models: transformers' decoders and T5, tables and n-grams, or a LanguageModel of your own (protocol.py)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
