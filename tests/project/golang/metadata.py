"""Finds each access to a label or annotation in Go source.

The maps of labels and annotations are followed from where they come from (`x.Labels`, `x.GetLabels()`, a path
of an unstructured object, a selector) through variables, parameters, results and fields. A use that this
package does not know is an access whose key cannot be found, so that it is reported.
"""

from typing import Final

from kai.key_classes import KeyKind
from tests.project.golang.accesses import LOGGING, Access, AccessLog
from tests.project.golang.maps import MAPS, Maps
from tests.project.golang.places import is_call, primary_start
from tests.project.golang.source import File
from tests.project.golang.syntax import arguments, element
from tests.project.golang.tokens import literal
from tests.project.golang.values import Values

_KEY_SECOND: Final = {
    "HasAnnotation": KeyKind.ANNOTATION, "SetMetaDataAnnotation": KeyKind.ANNOTATION, "HasLabel": KeyKind.LABEL,
    "SetMetaDataLabel": KeyKind.LABEL,
}  # fmt: skip
_SELECTORS: Final = frozenset({"SelectorFromSet", "SelectorFromValidatedSet", "ValidatedSetSelector", "Set"})
_PARSED: Final = frozenset(
    {"LabelSelectorAsSelector", "LabelSelectorAsMap", "ParseToLabelSelector", "ParseToRequirements"}
)
_PATHS: Final = ("metadata.labels", "metadata.annotations", "metadata/labels", "metadata/annotations")


def find_accesses(values: Values) -> list[Access]:
    """Find every access of a checkout."""
    starts = _Starts(values)
    for file in values.checkout.files:
        for index, token in enumerate(file.code.texts):
            starts.at(file, index, token)
    starts.maps.run()
    return starts.log.all()


class _Starts:
    """Finds where maps and keys of labels and annotations begin."""

    def __init__(self, values: Values) -> None:
        self.log = AccessLog(values)
        self.maps = Maps(values, self.log)

    def at(self, file: File, index: int, token: str) -> None:  # noqa: PLR0912  # one branch for each word
        """Begin at a token if a map comes from there, or goes there."""
        code = file.code
        before, after, parent = code.at(index - 1), code.at(index + 1), code.at(code.parents[index])
        text = literal(token)
        if text is not None:
            if text in ("labels", "annotations", "metadata"):
                self._path(file, index, text)
            elif any(path in text for path in _PATHS):
                self._path_text(file, index, text)
        elif token in MAPS and token.startswith("Set") and before == "." and after == "(":
            for argument in arguments(code, index + 1):
                self.maps.written(file, argument, MAPS[token])
        elif token == "MatchingLabels" and after in ("{", "("):
            self.maps.written(file, (primary_start(code, index), code.pairs[index + 1] + 1), KeyKind.LABEL)
        elif token == "HasLabels" and after == "{":
            for part in code.split((index + 2, code.pairs[index + 1])):
                self.log.key(file, (primary_start(code, index), index + 1), part, KeyKind.LABEL)
        elif token in MAPS and before == "." and not self._is_metric(file, index - 2):
            end = code.pairs[index + 1] + 1 if after == "(" else index + 1
            self.maps.read(file, (primary_start(code, index), end), MAPS[token])
        elif token in MAPS and after == ":" and parent == "{" and before in ("{", ","):
            self.maps.written(file, element(file, index + 2), MAPS[token])
        elif token == "Key" and after == ":" and _is_requirement(file, index):
            self.log.key(file, (index, index + 1), element(file, index + 2), KeyKind.LABEL)
        elif after == "(" and before == "." and (token == "NewRequirement" or token in _KEY_SECOND):
            parts = arguments(code, index + 1)
            place = 0 if token == "NewRequirement" else 1
            if len(parts) > place:
                self.log.key(file, (index, index + 1), parts[place], _KEY_SECOND.get(token, KeyKind.LABEL))
        elif after in ("(", "{") and before == "." and self._is_labels_package(file, index - 2):
            if token in _SELECTORS:
                span = (index - 2, code.pairs[index + 1] + 1)
                for part in [span] if token == "Set" else arguments(code, index + 1)[:1]:
                    self.maps.written(file, part, KeyKind.LABEL)
            elif token == "Parse":
                self.log.unclear(file, (index - 2, code.pairs[index + 1] + 1), KeyKind.LABEL)
        elif token in _PARSED and after == "(" and before == ".":
            self.log.unclear(file, (primary_start(code, index), code.pairs[index + 1] + 1), KeyKind.LABEL)
        elif token == "LabelSelector" and after in (":", "=") and (before == "." or parent == "{"):
            span = element(file, index + 2)
            if "{" not in code.texts[span[0] : span[1]]:
                self.log.unclear(file, (index, span[1]), KeyKind.LABEL)
        elif token.lower().endswith(("labels", "annotations")) and code.is_name(index):
            self._named(
                file, index, KeyKind.LABEL if token.lower().endswith("labels") else KeyKind.ANNOTATION
            )

    def _named(self, file: File, index: int, kind: KeyKind) -> None:
        """Begin at a variable or field whose name says that it has labels or annotations."""
        code = file.code
        if code.at(index + 1) != "[" and code.at(index - 1) != "range":
            return
        if code.at(index - 1) == ".":
            self.maps.read(file, (primary_start(code, index), index + 1), kind)
        elif file.function_at(index) is not None and code.pairs[index + 1] > index + 2:
            self.maps.variable(file, index, kind)

    def _is_metric(self, file: File, index: int) -> bool:
        return file.imports.get(file.code.at(index), "").endswith("/prometheus")

    def _is_labels_package(self, file: File, index: int) -> bool:
        return file.imports.get(file.code.at(index), "").endswith(("apimachinery/pkg/labels", "/labels"))

    def _path(self, file: File, index: int, word: str) -> None:
        """Begin at `"metadata"`, `"labels"` or `"annotations"` in a path of an unstructured object."""
        code = file.code
        opening, after = code.parents[index], code.at(index + 1)
        kind = MAPS.get(word, KeyKind.LABEL)
        if code.at(opening) == "(" and is_call(code, opening):
            parts = arguments(code, opening)
            number = next((n for n, part in enumerate(parts) if part == (index, index + 1)), -1)
            if code.at(opening - 1) in LOGGING and number >= 0:
                return
            rest = parts[number + 1 :]
            if number >= 0 and word == "metadata":
                if not rest or literal(code.texts[rest[0][0]]) is None or rest[0][1] - rest[0][0] > 1:
                    self.log.unclear(file, (primary_start(code, opening - 1), code.pairs[opening] + 1), kind)
                return
            if number > 0 and literal(code.texts[parts[number - 1][0]]) == "metadata":
                start = primary_start(code, opening - 1)
                if rest:
                    self.log.key(file, (start, opening), rest[0], kind)
                elif "Set" in code.texts[opening - 1]:
                    self.maps.written(file, parts[1], kind)
                else:
                    self.maps.result(file, (start, code.pairs[opening] + 1), 0, kind)
                return
        elif word == "metadata" and after in (":", "]"):
            return
        elif code.at(opening) == "{" and after == ":":
            self.maps.written(file, element(file, index + 2), kind)
            return
        elif code.at(opening) == "[" and after == "]":
            self.maps.read(file, (primary_start(code, opening), index + 2), kind)
            return
        self.log.unclear(file, (index, index + 1), kind)

    def _path_text(self, file: File, index: int, text: str) -> None:
        """Begin at a path in one text, as in a JSON patch or the name of an index."""
        code = file.code
        kind = KeyKind.LABEL if "labels" in text else KeyKind.ANNOTATION
        opening = code.parents[index]
        span = (index, index + 1)
        if code.at(opening - 1) == "Sprintf":
            span = (primary_start(code, opening - 1), code.pairs[opening] + 1)
            place = text.split("labels" if kind is KeyKind.LABEL else "annotations", maxsplit=1)[0].count("%")
            parts = arguments(code, opening)
            if text.endswith(("labels.%s", "labels/%s", "annotations.%s", "annotations/%s")):
                self.log.key(file, (index, index + 1), parts[place + 1], kind)
                return
        self.log.unclear(file, span, kind)


def _is_requirement(file: File, index: int) -> bool:
    """Whether a field `Key` is of a requirement of a selector."""
    code = file.code
    around = code.parents[index]
    return code.at(around - 1).endswith("Requirement") or (
        code.at(code.parents[around]) == "{" and code.at(code.parents[around] - 1).endswith("Requirement")
    )
