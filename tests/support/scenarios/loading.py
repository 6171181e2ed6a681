"""Loads a scenario of tests from its file. A mistake in one shows as an error of msgspec."""

from pathlib import Path
from typing import Any

import msgspec

from service.documents import load_file
from tests.support.scenarios.scenario import Scenario, decode_value


def load_scenario(path: Path) -> Scenario:
    (document,) = load_file(path)
    return parse_scenario(document)


def parse_scenario(document: Any, _source: str = "") -> Scenario:
    return msgspec.convert(document, Scenario, dec_hook=decode_value)
