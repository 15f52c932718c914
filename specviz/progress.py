"""Progress bars: one look for all long work."""

from tqdm import tqdm


def progress_bar(total, description: str, progress: bool | None = None, unit: str = "it", **settings) -> tqdm:
    """A tqdm bar on stderr. progress: True shows it at once, None once the work has taken two seconds, False never.

    Plain text also in a notebook: a widget would leave an empty cell in the saved file.
    """
    delay = 2.0 if progress is None else 0.0
    return tqdm(total=total, desc=description, unit=unit, disable=progress is False, delay=delay, **settings)
