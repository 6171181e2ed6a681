"""Finds the strings that an expression of Go source can have.

A value may contain `ANY`, which stands for a text that cannot be found. The order of assignments is ignored: a
variable can have the value of each of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final

from tests.project.golang.source import Checkout, File, Function
from tests.project.golang.syntax import arguments, assignment, element, names_in, results
from tests.project.golang.tokens import Span, literal

ANY: Final = "*"
"""Part of a value: any text. Keys of labels and annotations contain no such character."""

_DEEPEST: Final = 16
"""Steps from an expression back to where its value comes from; a longer way counts as unknown."""
_UNKNOWN: Final = frozenset({ANY})
Finding = Callable[[], frozenset[str]]
"""Finds values when it is called."""
_NONE: Final = frozenset[str]()
_CONVERSIONS: Final = frozenset({"string", "ResourceName", "ToLower", "TrimSpace", "To", "Deref"})
"""Functions of others, and types, that give back their first argument; letters are compared as they are."""

_CHOICES: Final = frozenset({"SetDefault"})
"""Functions of KAI that return one of their arguments."""


class Values:
    """The values of expressions of one checkout."""

    def __init__(self, checkout: Checkout, constants: Mapping[str, str]) -> None:
        """Index a checkout.

        Args:
            checkout: the checkout.
            constants: values of constants outside of it, by import path and name.
        """
        self.checkout = checkout
        self._constants = constants
        self.used: set[str] = set()
        """The constants outside of the checkout that were needed."""
        self._open: set[tuple[object, ...]] = set()
        self._unknown: set[tuple[object, ...]] = set()

    def of(self, file: File, span: Span) -> frozenset[str]:
        """Return the values of an expression."""
        code = file.code
        start, end = code.strip(span)
        while end - start > 1 and code.texts[start] in ("*", "&", "("):
            if code.texts[start] == "(":
                if code.pairs[start] != end - 1:
                    break
                end -= 1
            start += 1
        parts = code.split((start, end), "+")
        if len(parts) > 1:
            return frozenset(map("".join, product(*(self.of(file, part) for part in parts))))
        if end <= start:
            return _UNKNOWN
        if end - start == 1:
            text = literal(code.texts[start])
            if text is not None:
                return frozenset({text})
            return self.of_name(file, start) if code.is_name(start) else _UNKNOWN
        if code.texts[end - 1] == ")":
            return self._guard((id(file), start, "call"), lambda: self._of_call(file, code.pairs[end - 1], 0))
        if code.is_name(end - 1) and code.texts[end - 2] == ".":
            return self._of_selector(file, start, end - 1)
        return _UNKNOWN

    def _guard(self, key: tuple[object, ...], find: Finding) -> frozenset[str]:
        """Return no values for what is being looked for already, so that a recursion ends."""
        if key in self._open:
            return _NONE
        if key in self._unknown or len(self._open) > _DEEPEST:
            return _UNKNOWN
        self._open.add(key)
        values = find()
        self._open.discard(key)
        if ANY in values:
            self._unknown.add(key)
        return values

    def of_name(self, file: File, index: int) -> frozenset[str]:
        """Return the values of a constant, a variable or a parameter."""
        name, top = file.code.texts[index], file.function_at(index)
        if top is not None:
            sources = [*self._assigned(top, name), *self._parameters(top, name)]
            if sources:
                return self._guard((id(top), name), lambda: _union(find() for find in sources))
        return self._of_package(file.folder, name)

    def _of_package(self, folder: str, name: str) -> frozenset[str]:
        places = [*self.checkout.variables.get((folder, name), []), *self._assigned_later(folder, name)]
        if not places:
            return _UNKNOWN
        return self._guard((folder, name), lambda: _union(self.of(file, span) for file, span in places))

    def _assigned_later(self, folder: str, name: str) -> Iterator[tuple[File, Span]]:
        """Yield each value that a function gives to a variable of the package."""
        for file, index in self.checkout.occurrences[name]:
            if file.folder == folder and file.function_at(index) and file.code.at(index - 1) != ".":
                if file.code.at(index - 1) == "&":
                    yield file, (index, index)
                elif file.code.at(index + 1) == "=":
                    yield file, (index + 2, file.code.statement_end(index + 2))

    def _of_selector(self, file: File, start: int, index: int) -> frozenset[str]:
        """Return the values of a name of a package, or of a field."""
        code, name = file.code, file.code.texts[index]
        if index - 2 == start and code.texts[start] in file.imports:
            path = file.imports[code.texts[start]]
            folder = self.checkout.folder_of(path)
            if folder is not None:
                return self._of_package(folder, name)
            if f"{path}.{name}" in self._constants:
                self.used.add(f"{path}.{name}")
                return frozenset({self._constants[f"{path}.{name}"]})
            return _UNKNOWN
        return self._guard(("field", name), lambda: self._of_field(name))

    def _of_field(self, name: str) -> frozenset[str]:
        values = _union(self.of(*place) for place in self.field_values(name))
        if values - {""}:
            return values
        options = {option for place in self.field_values(name) for option in self._options(*place)}
        self.used |= options & self._constants.keys()
        return frozenset(self._constants.get(option, ANY) for option in options) or _UNKNOWN

    def _options(self, file: File, span: Span) -> Iterator[str]:
        """Yield the command-line option whose default an expression is."""
        opening = file.code.parents[span[0]]
        if file.code.at(opening - 1).endswith("Var"):
            yield from (f"--{name}" for name in self.of(file, arguments(file.code, opening)[1]))

    def field_values(self, name: str) -> Iterator[tuple[File, Span]]:
        """Yield each expression that becomes the value of a field of this name."""
        for file, index in self.checkout.occurrences[name]:
            code = file.code
            after, before = code.at(index + 1), code.at(index - 1)
            if after == ":" and before in ("{", ",", ";") and code.at(code.parents[index]) == "{":
                yield file, element(file, index + 2)
            elif before == "." and after == "=":
                yield file, (index + 2, code.statement_end(index + 2))
            elif before == "." and code.at(code.parents[index]) == "(":
                opening = code.parents[index]
                parts = arguments(code, opening)
                callee = code.at(opening - 1)
                place = 3 if callee.endswith("VarP") else 2
                is_flag = callee.endswith(("Var", "VarP")) and parts[0][1] == index + 1
                if is_flag and code.texts[parts[0][0]] == "&" and len(parts) > place:
                    yield file, parts[place]

    def _assigned(self, top: Function, name: str) -> Iterator[Finding]:
        file = top.file
        code = file.code
        for index in names_in(file, name, top.body):
            target = assignment(file, index)
            if code.at(index - 1) == "&" or code.at(index + 1) == "+=":
                yield lambda: _UNKNOWN
            elif target is not None:
                yield partial(self._of_assignment, file, *target)

    def _of_assignment(self, file: File, place: int, count: int, span: Span) -> frozenset[str]:
        code = file.code
        if code.texts[span[0]] == "range":
            return self.elements(file, (span[0] + 1, span[1]), place)
        parts = code.split(span)
        if len(parts) == count:
            return self.of(file, parts[place])
        if code.texts[span[1] - 1] == ")" and code.is_name(code.pairs[span[1] - 1] - 1):
            return self._of_call(file, code.pairs[span[1] - 1], place)
        return _UNKNOWN

    def elements(self, file: File, span: Span, place: int) -> frozenset[str]:
        """Return the elements of a list, or the keys of a map."""
        code = file.code
        start, end = code.strip(span)
        if code.texts[end - 1] == "}" and code.texts[start] in ("[", "map"):
            parts = code.split((code.pairs[end - 1] + 1, end - 1))
            sides = [code.split(part, ":") for part in parts]
            return _union(self.of(file, side[min(place, len(side) - 1)]) for side in sides)
        name = code.texts[end - 1]
        if end - start == 1 and code.is_name(start):
            lists = self.checkout.variables.get((file.folder, name), [])
        elif end - start == 3 and code.texts[start] in file.imports:
            folder = self.checkout.folder_of(file.imports[code.texts[start]])
            lists = self.checkout.variables.get((folder or "", name), [])
        else:
            lists = []
        top = file.function_at(start)
        if top is not None and end - start == 1:
            for index in names_in(file, name, top.body):
                target = assignment(file, index)
                if target is not None and target[1] == 1:
                    lists = [*lists, (file, target[2])]
        return self._guard(
            ("list", id(file), start),
            lambda: _union(self.elements(*item, place) for item in lists) or _UNKNOWN,
        )

    def _of_call(self, file: File, opening: int, place: int) -> frozenset[str]:
        code = file.code
        given = arguments(code, opening)
        name = code.at(opening - 1)
        if name == "Sprintf" and given:
            return _union(self._formatted(file, text, given[1:]) for text in self.of(file, given[0]))
        functions = self.functions(file, opening)
        if functions and name not in _CHOICES:
            return _union(self.of_result(function, place) for function in functions)
        if name in _CONVERSIONS | _CHOICES and given:
            return _union(self.of(file, argument) for argument in given)
        return _UNKNOWN

    def _formatted(self, file: File, text: str, given: list[Span]) -> frozenset[str]:
        parts = text.replace("%v", "%s").replace("%d", "%s").split("%s")
        if len(parts) != len(given) + 1 or any("%" in part for part in parts):
            return _UNKNOWN
        texts = {parts[0]}
        for part, argument in zip(parts[1:], given, strict=True):
            texts = {start + value + part for start in texts for value in self.of(file, argument)}
        return frozenset(texts)

    def functions(self, file: File, opening: int) -> list[Function]:
        """Return the functions of the checkout that a call can mean."""
        code = file.code
        index = opening - 1
        if code.at(index) == "]":
            index = code.pairs[index] - 1
        if not code.is_name(index):
            return []
        name = code.texts[index]
        if code.at(index - 1) != ".":
            top = file.function_at(opening)
            inner = [f for f in file.functions if f.outer is top and f.name == name] if top else []
            return inner or self.checkout.functions.get((file.folder, name), [])
        path = file.imports.get(code.at(index - 2)) if code.at(index - 3) != "." else None
        if path is None:
            return self.checkout.methods.get(name, [])
        folder = self.checkout.folder_of(path)
        return [] if folder is None else self.checkout.functions.get((folder, name), [])

    def of_result(self, function: Function, place: int) -> frozenset[str]:
        """Return the values of a function's result."""
        return self._guard(
            (id(function), place),
            lambda: _union(self.of(function.file, span) for span in results(function, place)) or _UNKNOWN,
        )

    def _parameters(self, top: Function, name: str) -> Iterator[Finding]:
        for function in top.file.functions:
            if function.top is top and name in function.params:
                yield partial(self._of_parameter, function, function.params.index(name))

    def _of_parameter(self, function: Function, place: int) -> frozenset[str]:
        calls = list(self.calls(function))
        if not calls or None in calls:
            return _UNKNOWN
        return _union(
            self.of(call[0], call[2][place]) if place < len(call[2]) else _UNKNOWN for call in calls if call
        )

    def calls(self, function: Function) -> Iterator[tuple[File, int, list[Span]] | None]:
        """Yield each call of a function with its arguments; None for each other use of the function."""
        if not function.name:
            yield None
            return
        for file, index in self.checkout.occurrences[function.name]:
            code = file.code
            if code.at(index - 1) == "func" or (
                code.at(index - 1) == ")" and code.at(code.pairs[index - 1] - 1) == "func"
            ):
                continue
            opening = index + 1
            if code.at(opening) == "[" and code.at(code.pairs[opening] + 1) == "(":
                opening = code.pairs[opening] + 1
            is_call = code.at(opening) == "("
            if function not in self.functions(file, opening if is_call else index + 1):
                continue
            if not is_call:
                if code.at(index + 1) not in (":", ":=", "=") and not (function.is_method or function.outer):
                    yield None
                continue
            given = arguments(code, opening)
            if len(given) == len(function.params) or not function.is_method:
                yield file, opening, given


def _union(groups: Iterable[frozenset[str]]) -> frozenset[str]:
    """Join values up to the first that is unknown."""
    values = set[str]()
    for each in groups:
        if ANY in each:
            return _UNKNOWN
        values |= each
    return frozenset(values)
