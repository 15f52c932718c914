"""Progress bars: one look for all long work."""

from contextlib import contextmanager

from tqdm import tqdm


def progress_bar(total, description: str, progress: bool | None = None, unit: str = "steps", **settings) -> tqdm:
    """A tqdm bar on stderr. progress: True shows it at once, None once the work has taken two seconds, False never.

    Plain text also in a notebook: a widget would leave an empty cell in the saved file.
    """
    settings |= dict(disable=progress is False, delay=2.0 if progress is None else 0.0)
    look = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} {unit} [{{elapsed}}<{{remaining}}]"
    return tqdm(total=total, desc=description, bar_format=look, **settings)


@contextmanager
def transformers_progress(shown: bool):
    """Let transformers show its own bars, or not, for the duration of a with block."""
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    try:
        if not shown:
            logging.disable_progress_bar()
        yield
    finally:
        if before:
            logging.enable_progress_bar()
