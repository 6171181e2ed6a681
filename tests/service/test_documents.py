"""Documents from strangers cost what their length allows, and what is refused is one line."""

import gc
import time

import pytest
import yaml

from service.documents import DocumentError, load_text, parse_documents


def bomb(levels: int = 9, width: int = 9) -> str:
    """Return lists of lists, each level as many times as large as the one before."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels + 1)]
    return "\n".join(lines)


def merge_bomb() -> str:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    return "\n".join(lines)


REFUSED = {
    "aliases of aliases": (bomb(), "file: aliases add more than 1048576 characters to the document"),
    "merges of merges": (merge_bomb(), "aliases add"),
    "an anchor twice": ("a: &a 1\nb: &a 2", "second occurrence"),
    "a long text many times": (f"- &a {'x' * 5000}\n" + "- *a\n" * 5000, "file: aliases add"),
    "an alias inside its anchor": ("a: &a [1, *a]", "file, line 1: an alias refers to a node that contains it"),
    "a map inside its anchor": ("a: &a {b: {c: *a}}", "an alias refers to a node that contains it"),
    "an unknown anchor": ("a: *b", "found undefined alias"),
    "levels by aliases": ("- &a0 [x]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 600)), "nested too deep"),
    "levels": ("[" * 501 + "]" * 501, "nested too deep"),
    "a huge integer": ("a: " + "9" * 5000, "file, line 1: not YAML: an integer of 5000 characters"),
    "an integer of a huge base 60": ("a: 1" + ":59" * 50_000, "an integer of 150001 characters"),
    "a huge float": ("a: 1." + "9" * 100_000, "a number of 100002 characters"),
    "a huge tagged integer": ("a: !!int " + "9" * 5000, "an integer of 5000 characters"),
    "not a number": ("a: .nan", 'file, line 1: not YAML: ".nan" is not a number'),
    "an infinite number": ("a: -.inf", '"-.inf" is not a number'),
    "a number above all floats": ("a: 1.0e+400", '"1.0e+400" is not a number'),
    "an invalid date": ("a: 2020-13-45", 'file, line 1: not YAML: "2020-13-45" is not a date'),
    "an invalid tagged date": ("a: !!timestamp x", '"x" is not a date'),
    "an invalid tagged boolean": ("a: !!bool x", '"x" is not a boolean'),
    "an empty integer": ('a: !!int ""', '"" is not an integer'),
    "invalid binary": ("a: !!binary 'é'", "failed to convert base64 data into ascii"),
    "a huge number as a key": ("{1: a, 999999999999999999999: b}", "an integer of 21 characters"),
    "a hostile tag": ("a: !" + "x" * 5000 + " b", "could not determine a constructor"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_document_that_costs_too_much_is_refused_with_one_line(name: str) -> None:
    text, line = REFUSED[name]
    with pytest.raises(DocumentError) as caught:
        load_text(text, "file")
    assert line in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &a [1, 2]\nb: *a\nc: [*a, *a]", {"a": [1, 2], "b": [1, 2], "c": [[1, 2], [1, 2]]}),
        ("a: &a {x: 1}\nb: {<<: *a, y: 2}", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}),
        ("a: 2020-12-31\nb: 0x1F\nc: 1_000\nd: 1:30\ne: .5\nf: on", None),
        ("{a: 1, a: 2}", {"a": 2}),
        ("args: ['*']", {"args": ["*"]}),
    ],
)
def test_an_ordinary_document_is_read_as_pyyaml_reads_it(text: str, value: object) -> None:
    assert load_text(text, "file") == [yaml.safe_load(text) if value is None else value]
    if text == "{a: 1, a: 2}":
        with pytest.raises(DocumentError, match='key "a" occurs twice'):
            parse_documents(text, "file", unique_keys=True)


def test_a_huge_document_without_aliases_is_read() -> None:
    assert load_text(f"a: {'x' * 5_000_000}\nb: '*'", "file")[0]["b"] == "*"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "- &a x\n" + "- *a\n" * n, lambda n: "".join(f"- &a{i} x\n- *a{i}\n" for i in range(n // 2)),
        lambda n: "[" * 400 + "&a x, " + "*a, " * n + "]" * 400,
        lambda n: "".join(f"{i}: x\n" for i in range(n)) + "b: '*'", lambda n: "k: x\n" * n + "b: '*'",
    ],
    ids=["aliases of one anchor", "anchors", "aliases below many levels", "keys", "the same key"],
)  # fmt: skip
def test_the_cost_grows_with_the_length(make) -> None:
    def seconds(count: int) -> float:
        text = make(count)
        taken = []
        gc.collect()
        gc.disable()  # a pass over the objects of all other tests would be the larger part of the time
        try:
            for _ in range(3):
                began = time.thread_time()
                load_text(text, "file")
                taken.append(time.thread_time() - began)
        finally:
            gc.enable()
        return min(taken)

    # 4 times if linear, 16 times if quadratic
    assert any(seconds(12_000) < 8 * seconds(3_000) for _ in range(3))
