"""Follows maps of labels and annotations through Go source to where their keys are accessed."""

from typing import Final

from kai.key_classes import KeyKind
from tests.project.golang.accesses import LOGGING, AccessLog, Note
from tests.project.golang.places import Place, Use, primary_start, use_of
from tests.project.golang.ranges import KeyLoops
from tests.project.golang.source import File, Function
from tests.project.golang.syntax import arguments, assignment, names_in, results
from tests.project.golang.tokens import Span, literal
from tests.project.golang.values import Values

MAPS: Final = {
    "Labels": KeyKind.LABEL,
    "GetLabels": KeyKind.LABEL,
    "SetLabels": KeyKind.LABEL,
    "MatchLabels": KeyKind.LABEL,
    "MatchingLabels": KeyKind.LABEL,
    "labels": KeyKind.LABEL,
    "Annotations": KeyKind.ANNOTATION,
    "GetAnnotations": KeyKind.ANNOTATION,
    "SetAnnotations": KeyKind.ANNOTATION,
    "annotations": KeyKind.ANNOTATION,
}
"""Words of Kubernetes for a map of labels or annotations."""

HARMLESS: Final = frozenset({"len", "DeepEqual", "Equal", "NotEqual"})
"""Functions that see a whole map and tell nothing of a key."""
_TYPES: Final = ("map[string]", "labels.Set", "MatchingLabels", "ListOption")
"""Parts of the types that a map of labels can have."""
_COPYING: Final = frozenset({"Copy", "Clone", "Equal"})


class Maps:
    """Follows maps; a map is an expression of Go source, with the kind of its keys."""

    def __init__(self, values: Values, log: AccessLog) -> None:
        self._values = values
        self._log = log
        self._loops = KeyLoops(values, log)
        self._done: set[tuple[object, ...]] = set()
        self._waiting: list[tuple[File, Span, KeyKind]] = []
        self._built: set[tuple[int, Span]] = set()
        """Calls of functions that return a map which they made."""

    def run(self) -> None:
        """Follow every map that has been added, and the maps that come from it."""
        while self._waiting:
            self._use(*self._waiting.pop())

    def read(self, file: File, span: Span, kind: KeyKind) -> None:
        """Add an expression that is a map."""
        if (id(file), span, kind) not in self._done:
            self._done.add((id(file), span, kind))
            self._waiting.append((file, span, kind))

    def _use(self, file: File, span: Span, kind: KeyKind) -> None:  # noqa: PLR0912  # one branch for each place
        """Follow a map to where its keys are accessed."""
        code = file.code
        use = use_of(file, span)
        match use.place:
            case Place.INDEXED:
                self._log.key(file, use.span, use.other, kind)
            case Place.ASSERTED:
                self.read(file, use.span, kind)
            case Place.METHOD if code.texts[use.other[0]] in ("Has", "Get") and code.at(use.opening) == "(":
                for argument in arguments(code, use.opening):
                    self._log.key(file, use.span, argument, kind)
            case Place.METHOD if code.texts[use.other[0]] in ("String", "AsSelector"):
                pass
            case Place.COMPARED:
                if code.text(use.other) != "nil":
                    self._log.unclear(file, span, kind)
            case Place.TARGET:
                self.written(file, use.other, kind, use.number)
            case Place.RANGED:
                self._loops.follow(file, use.span, kind)
            case Place.RETURNED:
                self._returned(file, use, kind)
            case Place.ASSIGNED if use.other[1] - use.other[0] == 1:
                if code.texts[use.other[0]] != "_":
                    self.variable(file, use.other[0], kind)
            case Place.ASSIGNED | Place.FIELD if self._is_map(file, use.other):
                if not self._is_built(file, span, use.other):
                    self._log.whole(file, span, kind, Note.COPIED)
            case Place.ASSIGNED | Place.FIELD if code.is_name(use.other[1] - 1):
                self._field(file, use.other, kind)
            case Place.ARGUMENT:
                self._argument(file, use, kind)
            case _:
                self._log.whole(file, span, kind, Note.UNCLEAR)

    def _is_map(self, file: File, target: Span) -> bool:
        """Whether an assigned expression or a key is the labels or annotations of an object."""
        token = file.code.texts[target[1] - 1]
        return token in MAPS or literal(token) in MAPS

    def _is_built(self, file: File, span: Span, target: Span) -> bool:
        """Whether a map was made in this function, or comes from the object to which it goes."""
        code = file.code
        top = file.function_at(span[0])
        if (id(file), span) in self._built:
            return True
        if span[1] - span[0] != 1 or top is None:
            return False
        owner = code.text((target[0], target[1] - 2)) if code.at(target[1] - 2) == "." else ""
        name, origins = code.texts[span[0]], 0
        if any(name in f.params for f in file.functions if f.top is top):
            return False
        for index in names_in(file, name, top.body):
            values = assignment(file, index)
            if values is not None:
                origins += 1
                text = code.text(values[2])
                is_new = text.startswith(("map[", "make(", "labels.Set{")) or text == "nil"
                if not is_new and not (owner and text.startswith(f"{owner}.")):
                    return False
        return origins > 0

    def _argument(self, file: File, use: Use, kind: KeyKind) -> None:
        """Follow a map into the function to which it is passed."""
        code = file.code
        name, callee = code.at(use.opening - 1), code.text(use.other)
        call = (use.other[0], code.pairs[use.opening] + 1)
        if name == "delete":
            self._log.key(file, use.span, arguments(code, use.opening)[1], kind)
        elif (
            name in LOGGING
            or (name in HARMLESS and not self._values.functions(file, use.opening))
            or (name in ("SetLabels", "SetAnnotations") and self._is_built(file, use.span, use.other))
        ):
            pass
        elif name in ("SetLabels", "SetAnnotations"):
            self._log.whole(file, use.span, kind, Note.COPIED)
        elif name in _COPYING and callee == f"maps.{name}":
            if use.number == 0 and name == "Copy":
                self.written(file, arguments(code, use.opening)[1], kind)
            elif name == "Clone":
                self.read(file, call, kind)
            else:
                self._log.whole(file, use.span, kind, Note.COPIED)
        elif callee in ("map[string]string", "labels.Set", "client.MatchingLabels"):
            self.read(file, call, kind)
        else:
            self._passed(file, use, kind)

    def _passed(self, file: File, use: Use, kind: KeyKind) -> None:
        """Follow a map into each function that a call can mean."""
        fitting = [
            function
            for function in self._values.functions(file, use.opening)
            if use.number < len(function.params) and _can_be_map(function.types[use.number])
        ]
        for function in fitting:
            self._variable_in(function.file, function.top, function.params[use.number], kind)
        if not fitting:
            self._log.whole(file, use.span, kind, Note.UNCLEAR)

    def variable(self, file: File, index: int, kind: KeyKind) -> None:
        """Follow each use of a variable that has a map, and each value of it."""
        top = file.function_at(index)
        if top is None:
            self._log.unclear(file, (index, index + 1), kind)
        else:
            self._variable_in(file, top, file.code.texts[index], kind)

    def _variable_in(self, file: File, top: Function, name: str, kind: KeyKind) -> None:
        if (id(top), name, kind) in self._done:
            return
        self._done.add((id(top), name, kind))
        code = file.code
        for index in names_in(file, name, top.body):
            is_package = code.at(index + 1) == "." and name in file.imports
            is_field = code.at(index + 1) == ":" and code.at(index - 1) in ("{", ",")
            target = assignment(file, index) if code.at(index - 1) == "var" else None
            if target is not None:
                self.written(file, target[2], kind)
            elif not is_package and not is_field and code.at(index - 1) != "var":
                self.read(file, (index, index + 1), kind)
        for function in file.functions:
            place = function.params.index(name) if function.top is top and name in function.params else -1
            if place >= 0 and _can_be_map(function.types[place]):
                for call in self._values.calls(function):
                    if call is not None and place < len(call[2]) and not _is_other(call[0], call[2][place]):
                        self.written(call[0], call[2][place], kind)

    def _field(self, origin: File, span: Span, kind: KeyKind) -> None:
        """Follow each use of a field that has a map, and each value of it."""
        name = origin.code.texts[span[1] - 1]
        if (name, kind) in self._done:
            return
        self._done.add((name, kind))
        places = self._values.checkout.occurrences[name]
        if not any(
            _can_be_map(file.code.text((i + 1, i + 5))) for file, i in places if file.code.at(i - 1) != "."
        ):
            self._log.unclear(origin, span, kind)
            return
        for file, index in places:
            if file.code.at(index - 1) == "." and file.imports.get(file.code.at(index - 2)) is None:
                self.read(file, (primary_start(file.code, index), index + 1), kind)
        for file, value in self._values.field_values(name):
            self.written(file, value, kind)

    def _returned(self, file: File, use: Use, kind: KeyKind) -> None:
        """Follow the result of the function that returns a map."""
        function = file.innermost_at(use.span[0])
        if function is None or not function.name:
            self._log.whole(file, use.span, kind, Note.UNCLEAR)
        elif (id(function), use.number, kind) not in self._done:
            self._done.add((id(function), use.number, kind))
            for call in self._values.calls(function):
                if call is None:
                    self._log.whole(file, use.span, kind, Note.UNCLEAR)
                else:
                    other, opening = call[0], call[1]
                    start = primary_start(other.code, opening - 1)
                    result = (start, other.code.pairs[opening] + 1)
                    if self._is_built(file, use.span, (0, 0)):
                        self._built.add((id(other), result))
                    self.result(other, result, use.number, kind)

    def result(self, file: File, span: Span, number: int, kind: KeyKind) -> None:
        """Follow one of the results of a call."""
        code = file.code
        if code.at(span[0] - 1) in ("=", ":="):
            start, targets = span[0] - 2, 1
            while code.at(start - 1) == "," and code.is_name(start - 2):
                start, targets = start - 2, targets + 1
            if targets > 1 and code.is_name(start + 2 * number):
                if code.texts[start + 2 * number] != "_":
                    self.variable(file, start + 2 * number, kind)
                return
        self.read(file, span, kind)

    def written(self, file: File, span: Span, kind: KeyKind, number: int = 0) -> None:
        """Add an expression that becomes a map of labels or annotations."""
        code = file.code
        start, end = code.strip(span)
        while code.at(start) in ("&", "*") and start + 1 < end:
            start += 1
        if start >= end or code.texts[start] == "nil" or code.texts[start : start + 2] == ["make", "("]:
            return
        done = ("written", id(file), (start, end), kind)
        if done in self._done:
            return
        self._done.add(done)
        last = code.texts[end - 1]
        if last == "}":
            self._literal(file, (start, end), kind)
        elif last == ")" and code.pairs[end - 1] > start:
            self._call(file, (start, end), kind, number)
        elif last in MAPS and code.at(end - 2) == ".":
            self.read(file, (start, end), kind)
        elif end - start == 1 and code.is_name(start):
            self.variable(file, start, kind)
        elif code.is_name(end - 1) and code.at(end - 2) == ".":
            self._field(file, (start, end), kind)
        elif last in ("]", ")"):
            self.read(file, (start, end), kind)
            self._log.unclear(file, (start, end), kind)
        else:
            self._log.unclear(file, (start, end), kind)

    def _literal(self, file: File, span: Span, kind: KeyKind) -> None:
        """Record each key of a composite literal."""
        code = file.code
        opening = code.pairs[span[1] - 1]
        if not _can_be_map(code.text((span[0], opening))):
            self._log.unclear(file, span, kind)
            return
        for part in code.split((opening + 1, span[1] - 1)):
            key = code.split(part, ":")[0]
            self._log.key(file, (span[0], opening), key, kind)

    def _call(self, file: File, span: Span, kind: KeyKind, number: int) -> None:
        """Follow what a call returns back to where it was made."""
        code = file.code
        opening = code.pairs[span[1] - 1]
        callee, name = code.text((span[0], opening)), code.at(opening - 1)
        functions = self._values.functions(file, opening)
        if code.texts[span[0]] == "func":
            functions = [
                f for f in file.functions if span[0] < f.body[0] < opening and f.body[1] == opening - 1
            ]
        if name in MAPS:
            self.read(file, span, kind)
        elif callee in ("map[string]string", "labels.Set", "client.MatchingLabels", "maps.Clone"):
            self.written(file, arguments(code, opening)[0], kind)
        elif not functions:
            self._log.unclear(file, span, kind)
        for function in functions:
            if _can_be_map(function.result):
                for value in results(function, number):
                    self.written(function.file, value, kind)


def _is_other(file: File, span: Span) -> bool:
    """Whether an argument is no map by its declaration, so that the call is of another method of this name."""
    top, name = file.function_at(span[0]), file.code.texts[span[0]]
    if top is None or span[1] - span[0] > 1:
        return False
    types = [f.types[f.params.index(name)] for f in file.functions if f.top is top and name in f.params]
    values = [assignment(file, index) for index in names_in(file, name, top.body)]
    pointers = [v is not None and file.code.texts[v[2][0]] == "&" for v in values]
    return any(pointers) or any(not _can_be_map(declared) for declared in types)


def _can_be_map(declared: str) -> bool:
    """Whether a declared type can be a map of labels; others belong to functions of the same name."""
    return declared in ("any", "interface{}") or any(word in declared for word in _TYPES)
