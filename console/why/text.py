"""The answer of `kaishare why` as text and as JSON. Pure."""

from collections.abc import Sequence

import msgspec

from console.why.answer import Answer
from service.text import fold


def as_text(answer: Answer, *, columns: int, colour: bool, program: str) -> Sequence[str]:
    """Return the lines of the answer, at most as wide as the terminal."""
    del colour, program
    sentences = [f"{answer.state}: {answer.cause.sentence}"]
    sentences += [each.text for each in answer.cause.remedies]
    sentences += [finding.sentence for finding in answer.findings[1:]]
    if answer.not_visible:
        sentences.append(f"not visible to you: {', '.join(answer.not_visible)}")
    sentences += answer.notes
    return [line for sentence in sentences for line in fold(sentence, columns, indent="  ")]


def as_json(answer: Answer) -> str:
    """Return the answer as a JSON document."""
    return msgspec.json.encode(answer).decode() + "\n"
