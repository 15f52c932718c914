"""Models people get: the bundled pair, and any two Hugging Face decoders."""

from __future__ import annotations

from pathlib import Path

import torch

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
BUNDLED = {"tales": (CHECKPOINTS / "tales" / "target", CHECKPOINTS / "tales" / "draft")}


def load_pair(target, draft=None, *, device="auto", dtype=torch.float32):
    """Load a pair -> (target, drafter), two CausalLMs.

    One argument names a bundled pair ("tales"); two are Hugging Face ids or folders of a target and a draft.
    device is "auto" (CUDA, then MPS, then CPU) or a torch device; dtype is that of the weights in memory.

    Raises ValueError for an unknown name or device, a damaged or incomplete folder, models that cannot be
    rewound, and tokenizers that differ.
    """
    if draft is None:
        if target not in BUNDLED:
            raise ValueError(
                f"pair {target!r} is unknown: the bundled ones are {sorted(BUNDLED)}. For two models of your own "
                "give both: load_pair(target, draft)."
            )
        (target_path, draft_path), names = BUNDLED[target], (f"{target}-target", f"{target}-draft")
    else:
        for path in (target, draft):
            if not isinstance(path, (str, Path)) or str(path) in BUNDLED:
                raise ValueError(
                    f"load_pair({target!r}, {draft!r}): two arguments are Hugging Face ids or folders; a bundled pair "
                    f"is loaded by its name alone, such as load_pair({next(iter(BUNDLED))!r})."
                )
        (target_path, draft_path), names = (target, draft), (str(target), str(draft))
    pair = [load_model(path, device, dtype, name) for path, name in zip((target_path, draft_path), names, strict=True)]

    from specviz.drafters.model import ModelDrafter

    ModelDrafter(pair[1]).fit(pair[0])
    return tuple(pair)


def choose_device(device="auto") -> torch.device:
    """ "auto" -> CUDA, else MPS, else CPU; anything else must be a torch device that is there."""
    if device != "auto":
        try:
            if device is None:
                raise TypeError("None is no device")
            torch.zeros(1, device=device)
            return torch.device(device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise ValueError(f"device={device!r} cannot be used here ({error}); device='auto' finds one.") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(path, device="auto", dtype=torch.float32, name=None):
    """One Hugging Face decoder (an id or a folder, safetensors only) as a CausalLM. See load_pair()."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from specviz.models.causal import CausalLM

    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype!r}: must be a floating-point torch dtype, such as torch.float32.")
    device = choose_device(device)
    folder = Path(path)
    if folder.is_absolute() and not folder.is_dir():
        raise ValueError(f"checkpoint folder {path} does not exist.")
    if folder.is_dir():
        missing = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
        missing += [] if any(folder.glob("*.safetensors")) else ["model.safetensors"]
        if missing:
            raise ValueError(f"checkpoint folder {path} is incomplete: {', '.join(missing)} missing; fetch it again.")
    quiet = logging.is_progress_bar_enabled() and folder.is_dir()  # loading a folder takes a moment, no bar's worth
    if quiet:
        logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model, report = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:
        remedy = "the folder is damaged; fetch it again" if folder.is_dir() else "check the id and the network"
        raise ValueError(
            f"model {str(path)!r} cannot be loaded ({type(error).__name__}: {error}); {remedy}."
        ) from error
    finally:
        if quiet:
            logging.enable_progress_bar()
    wrong = {kind: sorted(map(str, report[kind])) for kind in ("missing_keys", "mismatched_keys") if report.get(kind)}
    if wrong:
        raise ValueError(f"checkpoint {str(path)!r} does not fit its config.json: {wrong}; fetch it again.")
    return CausalLM(model.to(device), tokenizer, name=name)
