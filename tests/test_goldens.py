"""Every journey gives what it gave: the cases of `goldens.py`, a group at a time."""

from __future__ import annotations

import json

import goldens
import pytest
import torch

KNOWN = json.loads(goldens.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", goldens.GROUPS)
@pytest.mark.filterwarnings("ignore")
def test_nothing_has_changed(group: str) -> None:
    threads = torch.get_num_threads()
    try:
        found = {name: goldens.digest(data) for name, data in goldens.cases([group])}
    finally:
        torch.set_num_threads(threads)
    assert found, "a group without cases tests nothing"
    assert not goldens.differences(found, KNOWN, exact=False)


def test_a_difference_is_seen() -> None:
    old = {"case": goldens.digest({"text": "a", "log_prob": -1.0})}
    for data in ({"text": "b", "log_prob": -1.0}, {"text": "a", "log_prob": -1.001}):
        assert goldens.differences({"case": goldens.digest(data)}, old, exact=False)
    close = {"case": goldens.digest({"text": "a", "log_prob": -1.000001})}
    assert not goldens.differences(close, old, exact=False)
    assert goldens.differences(close, old, exact=True)
