"""Texts that are label selectors, with labels that they match or do not match, and texts that are not selectors.
The cases are those of the documentation and the tests of `labels.Parse` (k8s.io/apimachinery)."""

from typing import Final

MATCHES: Final[list[tuple[str, dict[str, str], bool]]] = [
    ("x=y", {"x": "y"}, True), ("x=y,z=w", {"x": "y", "z": "w"}, True), ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
    ("notin=in", {"notin": "in"}, True), ("in in (notin)", {"in": "notin"}, True), ("x", {"x": "z"}, True),
    ("!x", {"y": "z"}, True), ("! x", {"y": "z"}, True), ("x>1", {"x": "2"}, True), ("x<1", {"x": "0"}, True),
    ("x>1,z<5", {"x": "2", "z": "4"}, True), ("x=z", {}, False), ("x=y", {"x": "z"}, False),
    ("x=y,z=w", {"x": "w", "z": "w"}, False), ("x!=y,z!=w", {"x": "z", "z": "w"}, False), ("x", {"y": "z"}, False),
    ("!x", {"x": "z"}, False), ("x>1", {"x": "0"}, False), ("x<1", {"x": "2"}, False), ("x>1", {"x": "many"}, False),
    ("x>1", {"x": "9223372036854775808"}, False), ("x>1", {}, False),
    ("foo=bar", {"foo": "bar", "baz": "blah"}, True), ("baz=blah", {"foo": "bar", "baz": "blah"}, True),
    ("foo=bar,baz=blah", {"foo": "bar", "baz": "blah"}, True), ("foo=blah", {"foo": "bar", "baz": "blah"}, False),
    ("foo=bar,foobar=bar,baz=blah", {"foo": "bar", "baz": "blah"}, False), ("x=", {"x": ""}, True),
    ("x= ", {"x": ""}, True), ("x=,z= ", {"x": "", "z": ""}, True), ("x= ,z= ", {"x": "", "z": "a"}, False),
    ("x=", {}, False), ("x!=", {}, True), ("x in (a,b)", {"x": "b"}, True), ("x in ( a , b )", {"x": "b"}, True),
    ("x\tin\n(a)", {"x": "a"}, True), ("x in (a)", {}, False), ("x notin (a,b)", {"x": "c"}, True),
    ("x notin (a,b)", {}, True), ("x notin (a,b)", {"x": "a"}, False), ("x in ()", {"x": ""}, True),
    ("x in (,)", {"x": ""}, True), ("x in (a,)", {"x": ""}, True), ("x in (,a)", {"x": "a"}, True),
    ("x in (a,,b)", {"x": ""}, True), ("x in (a,,)", {"x": ""}, True), ("x in (a,,)", {"x": "a"}, True),
    ("x in (,,)", {"x": ""}, True), ("x in (,,,a)", {"x": "a"}, True), ("x in (),y", {"x": "", "y": "1"}, True),
    ("x notin (,)", {"x": ""}, False), ("x==a", {"x": "a"}, True), ("x == a,y!=b", {"x": "a"}, True),
    ("batch.kubernetes.io/job-name", {"batch.kubernetes.io/job-name": "train"}, True),
    ("x.example.com/Y_z.1=A_b.2", {"x.example.com/Y_z.1": "A_b.2"}, True), ("x=1,x=2", {"x": "1"}, False),
    ("x=007", {"x": "7"}, False), ("x>007", {"x": "8"}, True),
]  # fmt: skip
"""A selector, labels, and whether it matches them."""

BAD: Final[dict[str, str]] = {
    "x=a||y=b": 'has "a||y" where a label value is expected',
    "x==a==b": 'has "==" where "," is expected',
    "!x=a": 'has "=" where "," is expected',
    "x<a": 'has "a" where an integer is expected',
    "x>": 'has "" where an integer is expected',
    "x=a,": "has the end where a label key is expected",
    ",x": 'has "," where a label key is expected',
    "x in (a": 'has the end where "," or ")" is expected',
    "x in a": 'has "a" where "(" is expected',
    "x in (a,(b))": 'has "(" where a label value is expected',
    "x in (a,": "has the end where a label value is expected",
    "x in (": "has the end where a label value is expected",
    "x in (a b)": 'has "b" where "," or ")" is expected',
    "x a": 'has "a" where one of = == != in notin < > is expected',
    "x !": 'has "!" where one of = == != in notin < > is expected',
    "x exists": 'has "exists" where one of = == != in notin < > is expected',
    "()": 'has "(" where a label key is expected',
    "!": "has the end where a label key is expected",
    "!!x": 'has "!" where a label key is expected',
    "-x": 'has "-x" where a label key is expected',
    "x/y/z": 'has "x/y/z" where a label key is expected',
    "/x": 'has "/x" where a label key is expected',
    "X.io/y": 'has "X.io/y" where a label key is expected',
    "é=1": 'has "é" where a label key is expected',
    "x=-a": 'has "-a" where a label value is expected',
    "x=" + "a" * 64: "where a label value is expected",
    "x>9223372036854775808": "where an integer is expected",
    "": "is empty",
    " \t": "is empty",
    "x\0": "contains a null character",
    "a=b," * 256 + "c": "has 1025 characters, more than 1024",
}
"""A text that is not a selector, and a part of the message about it."""

OWN_LIMITS: Final = frozenset(
    text
    for text, message in BAD.items()
    if "characters" in message or "null" in message or "empty" in message
)
"""Texts of `BAD` that kaishare refuses and an API server does not."""
