"""From what a user calls MODEL to a :class:`Model`: a preset's name, a config.json, or a folder that holds one."""

from __future__ import annotations

import os
from dataclasses import astuple
from pathlib import Path

from hisparse_svc._core import Model, Preset, presets
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
            return Model.preset(model)
        except InvalidInput:
            if not names_a_file(model):
                raise
    path = Path(model)
    if path.is_dir():
        path = path / CONFIG
    return Model.from_json_text(name_of(path), read_config(path, os.fspath(model)))


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
    """Give a file's model the name of its folder, unless the file's own name says more."""
    return path.resolve().parent.name if path.name == CONFIG else path.stem


def read_config(path: Path, given: str) -> str:
    """Read the file's text, or say why that cannot be."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        rule = "must be a preset, a config.json or a folder that holds one"
        remedy = "check the path; `hisparse-svc models` lists the presets"
    except UnicodeDecodeError:
        rule, remedy = "must be a text file in UTF-8", "give the config.json that comes with the checkpoint"
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        rule, remedy = f"must be a file that can be read ({reason})", "check the path and its permissions"
    raise InvalidInput([Problem("MODEL", f'"{given}"', rule, remedy)])
