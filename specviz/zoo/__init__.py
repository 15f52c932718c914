"""Named pairs of models, and loading models from a hub, a folder or a package."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
