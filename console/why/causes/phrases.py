"""Finds figures and names in messages of KAI by the phrases around them, in linear time. Pure."""


def between(text: str, start: str, end: str) -> str:
    """Return the text between two phrases; empty if one of them is missing."""
    _, _, rest = text.partition(start)
    inner, phrase, _ = rest.partition(end)
    return inner if phrase else ""


def word_before(text: str, phrase: str) -> str:
    """Return the word before a phrase; empty without the phrase."""
    before, match, _ = text.partition(phrase)
    return before.rpartition(" ")[2] if match else ""


def number_after(text: str, phrase: str) -> float | None:
    """Return the number after a phrase; None if there is none."""
    _, _, rest = text.partition(phrase)
    word = rest[:20].partition(" ")[0].rstrip(".,")
    return float(word) if word.replace(".", "", 1).isdecimal() and word.isascii() else None
