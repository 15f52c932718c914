"""specviz: speculative decoding (Leviathan et al., ICML 2023), to be seen, proved and measured.

A name is imported when it is first used; __init__.pyi says where it comes from.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
