"""Examples that the checks of several lessons try an answer on."""

import torch


def random_pair(generator, size=6):
    """Two distributions p, q [size] in float64, every probability positive."""
    p, q = torch.rand(2, size, generator=generator, dtype=torch.float64) ** 2 + 0.01
    return p / p.sum(), q / q.sum()


class RecordingModel:
    """A language model that keeps the ids that its caches were fed: one list for each forward, of a single row."""

    def __init__(self, model):
        self.model, self.fed = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def new_cache(self, prompts, capacity, needs=frozenset()):
        cache = self.model.new_cache(prompts, capacity + 1000, needs)  # too many tokens: a hint says so, not an error
        feed = cache.feed

        def recorded(tokens, count=None):
            self.fed.append(tokens[0].tolist())
            return feed(tokens, count)

        cache.feed = recorded
        return cache
