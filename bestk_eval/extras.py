"""Loads the packages of the optional extras, or says how to install them."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from bestk.errors import MissingExtraError


def require(module: str, package: str, extra: str = "eval") -> Any:
    """Import a module of an optional package.

    >>> require("json", "json").dumps([1])
    '[1]'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a package says to itself while it loads
            return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            needs = f"{package} cannot be loaded without {error.name}"
        else:
            needs = f"{package} is not installed"
        raise MissingExtraError(f"{needs}: pip install 'bestk[{extra}]'") from error
