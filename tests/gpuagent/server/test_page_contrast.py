"""Contrast of the page's marks and texts, computed from its style sheet by the formula of WCAG 2.2."""

import re

import pytest

from gpuagent.server.page.renderer import STATIC
from gpuagent.server.page.sections import COLOURS

CSS = (STATIC / "page.css").read_text(encoding="utf-8")
PODS = [f"c{number}" for number in range(COLOURS)]
MARKS = [*PODS, "alarm", "grey", "line", "ink"]
"""Colours of fills and lines, which touch nothing but the paper: a line of paper separates parts of a bar."""
TEXTS = ["ink", "faint", "alarm"]
GROUNDS = ["paper", "stripe", "target"]


def palettes() -> dict[str, dict[str, str]]:
    """Return the colours of the light and the dark scheme by name."""
    light, dark = re.split(r"prefers-color-scheme: dark", CSS)
    schemes = {}
    for name, text in (("light", light), ("dark", dark)):
        block = text.split(":root", 1)[1].split("}", 1)[0]
        pairs = [part.split(":") for part in block.split(";") if part.strip(" {\n").startswith("--")]
        schemes[name] = {key.strip(" {\n").removeprefix("--"): colour.strip() for key, colour in pairs}
    return schemes


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    brighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


SCHEMES = palettes()


def test_the_formula_gives_the_known_contrasts() -> None:
    assert contrast("#fff", "#000") == 21
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48


def test_both_schemes_have_every_colour() -> None:
    assert SCHEMES["light"].keys() == SCHEMES["dark"].keys()
    assert {*MARKS, *TEXTS, *GROUNDS} == SCHEMES["light"].keys()
    used = {part.split(")", 1)[0] for part in CSS.split("var(--")[1:]}
    assert used == SCHEMES["light"].keys()
    rules = CSS.split("* { box-sizing", 1)[1]
    assert "#" not in rules.replace('url("#', "").replace("#page", "").replace("#age", ""), (
        "colours are named"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", GROUNDS)
def test_every_mark_has_a_contrast_of_3_to_1(scheme: str, ground: str) -> None:
    colours = SCHEMES[scheme]
    low = {mark: round(contrast(colours[mark], colours[ground]), 2) for mark in MARKS}
    assert {mark: value for mark, value in low.items() if value < 3} == {}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_has_a_contrast_of_4_5_to_1(scheme: str) -> None:
    colours = SCHEMES[scheme]
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS]
    pairs += [("paper", pod) for pod in PODS]  # the numbers in a GPU's bar
    low = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < 4.5} == {}


def test_parts_of_a_bar_that_touch_are_separated_by_paper() -> None:
    assert re.search(r"\.device g rect \{ stroke: var\(--paper\); stroke-width: 1\.5; \}", CSS)
