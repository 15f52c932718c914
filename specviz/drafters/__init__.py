"""What proposes tokens: a draft model, prompt lookup, layer skip, or a Drafter of your own (protocol.py)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
