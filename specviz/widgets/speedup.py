"""The speedup explorer: slide γ, α, c and the cost of verification, and watch where speculation pays."""

from __future__ import annotations

import traitlets

from specviz.speedup.result import Profile
from specviz.widgets.base import Widget

MAX_GAMMA = 16  # how far the picture goes; the formulas know no limit

# α, γ; c = ĉ = 0
TABLE_1 = [(0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)]

# task, draft, temperature, γ, α, c, measured speedup (Tables 2 and 4; target: T5 v1.1 XXL)
TABLE_2 = [
    ("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.4),
    ("EnDe", "T5-base", 0, 7, 0.80, 0.04, 2.8),
    ("EnDe", "T5-large", 0, 7, 0.82, 0.11, 1.7),
    ("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.6),
    ("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4),
    ("EnDe", "T5-large", 1, 3, 0.71, 0.11, 1.4),
    ("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 3.1),
    ("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 3.0),
    ("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.2),
    ("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 2.3),
    ("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 2.2),
    ("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.7),
]
T5_PARAMETERS = {"T5-small": 77e6, "T5-base": 250e6, "T5-large": 800e6, "T5-XXL": 11e9}


class SpeedupExplorer(Widget):
    """The speedup over γ for an α, a c and a verification cost, beside one round drawn to scale.

    profile: a specviz.speedup.Profile, or its JSON. Its measured speedups lie over the curve, and the
    sliders start from its numbers. JSON that is no profile leaves a message in the widget's place.

    Traits, synced both ways, which may be given as keywords too:
    gamma         drafts a round, 1 to 16
    alpha         acceptance rate, 0 to 1
    c             time of a draft step in target steps, 0 to 1
    verify_slope  how V(n) = 1 + verify_slope·(n - 1) grows, 0 (the paper's V = 1) to 1 (n tokens cost n steps)
    c_hat         operations of a draft step over those of a target step, 0 to 1; only the operations factor uses it

    Raises ValueError for a profile that is neither, and traitlets.TraitError for a value out of range.
    """

    part = "speedup"

    gamma = traitlets.Int(4).tag(sync=True)
    alpha = traitlets.Float(0.72).tag(sync=True)
    c = traitlets.Float(0.08).tag(sync=True)
    verify_slope = traitlets.Float(0.05).tag(sync=True)
    c_hat = traitlets.Float(0.0).tag(sync=True)

    def __init__(self, profile=None, **traits):
        if not (profile is None or isinstance(profile, (Profile, str))):
            raise ValueError(
                f"profile is a {type(profile).__name__}: must be a Profile (Profile.bundled() is one), or its JSON."
            )
        super().__init__(**traits)
        self.fill(_data, profile)
        for name, value in (self.data.get("profile") or {}).get("start", {}).items():
            if name not in traits:
                setattr(self, name, value)

    @traitlets.validate("gamma")
    def _check_gamma(self, proposal):
        if not 1 <= proposal.value <= MAX_GAMMA:
            raise traitlets.TraitError(f"gamma={proposal.value!r}: must be a whole number from 1 to {MAX_GAMMA}.")
        return proposal.value

    @traitlets.validate("alpha", "c", "verify_slope", "c_hat")
    def _check_rate(self, proposal):
        if not 0 <= proposal.value <= 1:
            raise traitlets.TraitError(f"{proposal.trait.name}={proposal.value!r}: must lie in 0 .. 1.")
        return proposal.value


def _data(profile) -> dict:
    if isinstance(profile, str):
        profile = Profile.from_json(profile)
    of_pair = None if profile is None else _profile_data(profile)
    return {"max_gamma": MAX_GAMMA, "profile": of_pair, "presets": _presets(of_pair)}


def _profile_data(profile) -> dict:
    gammas = range(1, MAX_GAMMA + 1)
    measured = [
        {"gamma": gamma, "median": speed.median, "low": speed.low, "high": speed.high, "runs": speed.runs}
        for gamma, speed in sorted(profile.speedups.items())
        if gamma <= MAX_GAMMA
    ]
    best = max(measured, key=lambda point: point["median"], default={"gamma": 4})
    start = {
        "gamma": best["gamma"],
        "alpha": profile.alpha,
        "c": min(1.0, profile.c),
        "verify_slope": min(1.0, profile.verify_slope),
        "c_hat": min(1.0, profile.operations_ratio or 0.0),
    }
    return {
        "target": profile.target,
        "drafter": profile.drafter,
        "machine": profile.machine,
        "start": start,
        "measured": measured,
        "predicted": profile.predicted(gammas).tolist(),
        "with_overhead": profile.predicted(gammas, overhead=True).tolist(),
    }


def _presets(of_pair) -> list[dict]:
    """What the menu offers: "text" and "group" are keys of texts.json, "words" is what is filled in there."""
    presets = []
    if of_pair is not None:
        presets.append({"text": "preset_profile", "group": "group_profile", "words": {}, **of_pair["start"]})
    for alpha, gamma in TABLE_1:
        setting = {"gamma": gamma, "alpha": alpha, "c": 0.0, "verify_slope": 0.0, "c_hat": 0.0}
        presets.append({"text": "preset_table_1", "group": "group_table_1", "words": setting, **setting})
    for task, draft, temperature, gamma, alpha, c, measured in TABLE_2:
        words = {"task": task, "draft": draft, "temperature": temperature}
        setting = {"gamma": gamma, "alpha": alpha, "c": c, "verify_slope": 0.0, "measured": measured}
        setting["c_hat"] = T5_PARAMETERS[draft] / T5_PARAMETERS["T5-XXL"]
        presets.append({"text": "preset_table_2", "group": "group_table_2", "words": words, **setting})
    return presets
