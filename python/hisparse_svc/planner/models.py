"""From what a user calls MODEL to a :class:`Model`: a preset's name, a config.json, or a folder that holds one."""

from __future__ import annotations

import os
import reprlib
from dataclasses import astuple
from pathlib import Path

from hisparse_svc import files
from hisparse_svc._core import MAX_CONFIG_BYTES, Model, Preset, presets
from hisparse_svc.errors import InvalidInput, Problem

__all__ = ["load_model", "models"]

CONFIG = "config.json"


def models() -> list[Preset]:
    """Give the bundled models.

    Example:
        >>> import hisparse_svc
        >>> [preset.name for preset in hisparse_svc.models() if preset.family == "deepseek_v32"]
        ['deepseek-v3.2', 'toy-dsa']
    """
    return presets()


def load_model(model: str | os.PathLike[str] | Model) -> Model:
    """Find and read a model.

    A preset's name goes before a file of the same name; write ``./glm-5.2`` for the file.

    Args:
        model: A preset's name (see :func:`models`), the path of a ``config.json``, a folder that holds one, or a
            model that is read already, which comes back as it is.

    Returns:
        The model, to be planned for as often as wanted: reading is the slow part.

    Raises:
        InvalidInput: There is no such preset or file, or the file is wrong; every problem of it together.

    Example:
        >>> import hisparse_svc
        >>> hisparse_svc.load_model("glm-5.2").indexer_layers
        21
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str):
        try:
            return Model.preset(files.printable(model))
        except InvalidInput:
            if not names_a_file(model):
                raise
    try:
        path = Path(model)
    except TypeError:
        rule, remedy = (
            "must be text, a path or a Model",
            "give a preset's name, a config.json or a folder that holds one",
        )
        raise InvalidInput([Problem("MODEL", files.printable(reprlib.repr(model)), rule, remedy)]) from None
    file, text = read_config(path)
    return Model.from_json_text(files.printable(name_of(file)), text)


def model_or_problems(model: str | os.PathLike[str] | Model) -> Model | list[tuple[str, str, str, str]]:
    """As :func:`load_model`, with a refusal as data: the core reports it together with all else that is wrong."""
    try:
        return load_model(model)
    except InvalidInput as refused:
        return [astuple(problem) for problem in refused.problems]


def names_a_file(text: str) -> bool:
    """Tell a path from a misspelt preset: it exists, or it is written like one."""
    return os.sep in text or text.endswith(".json") or Path(text).exists()


def name_of(path: Path) -> str:
    """Give the file's model the name of its folder, unless the file's own name says more."""
    return path.resolve().parent.name if path.name == CONFIG else path.stem


def read_config(path: Path) -> tuple[Path, str]:
    """Find the config.json that a path means, and read its text, or say why that cannot be."""
    if path.is_dir():
        missing = (f"is a folder without a {CONFIG}", f"add the checkpoint's {CONFIG}, or name another folder")
        file = path / CONFIG
    else:
        rule = f"must be a preset, a {CONFIG} or a folder that holds one"
        missing = (rule, "check the path; `hisparse-svc models` lists the presets")
        file = path
    return file, files.read_text(file, "MODEL", given=path, most_bytes=MAX_CONFIG_BYTES, missing=missing)
