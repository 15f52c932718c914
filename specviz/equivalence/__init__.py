"""Does a decoder keep its promise? Exact proof, statistics, an audit of any decoder, and a line-up of wrong ones."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
