"""The check of KAI's source finds every access to a label or annotation, and compares it with the table."""

import os
from pathlib import Path

import pytest

from kai.key_classes import TABLE, KeyKind
from tests.project.kai_reads import NEWEST, Reading, main, missing, proof, read, stale
from tests.project.kai_reviewed import Reviewed

pytestmark = pytest.mark.nightly  # a tool for a new release of KAI

MODULE = "github.com/NVIDIA/KAI-scheduler"
KNOWN = "kai.scheduler/queue"

ACCESSES = [
    ("a label", 'v := pod.Labels["acme.io/x"]', "label", "acme.io/x"),
    ("an annotation", 'v := pod.Annotations["acme.io/x"]', "annotation", "acme.io/x"),
    ("a method", 'v := pod.GetLabels()["acme.io/x"]', "label", "acme.io/x"),
    ("generic maps", 'v := o["metadata"].(map[string]any)["labels"].(map[string]any)["acme.io/x"]', "label", "acme.io/x"),
    ("a method of a set", 'v := labels.Set(pod.Labels).Has("acme.io/x")', "label", "acme.io/x"),
    ("a path of fields", 'v := j.Spec.Template.Annotations["acme.io/x"]', "annotation", "acme.io/x"),
    ("a type assertion", 'v := obj.(*corev1.Pod).Labels["acme.io/x"]', "label", "acme.io/x"),
    ("an initial value in if", 'if v, ok := pod.Labels["acme.io/x"]; ok { use(v) }', "label", "acme.io/x"),
    ("a write", 'pod.Labels["acme.io/x"] = "1"', "label", "acme.io/x"),
    ("a removal", 'delete(pod.Annotations, "acme.io/x")', "annotation", "acme.io/x"),
    ("a local variable", 'm := pod.GetAnnotations()\nv := m["acme.io/x"]', "annotation", "acme.io/x"),
    ("a declared variable", 'var m map[string]string = pod.Labels\nv := m["acme.io/x"]', "label", "acme.io/x"),
    ("two results", 'a, b := pod.GetLabels(), pod.GetAnnotations()\nuse(a[Known], b["acme.io/x"])',
     "annotation", "acme.io/x"),
    ("a variable by its name", 'func f(podLabels map[string]string) { use(podLabels["acme.io/x"]) }', "label",
     "acme.io/x"),
    ("a constant", "v := pod.Labels[Local]", "label", "acme.io/local"),
    ("a constant of another package", "v := pod.Labels[consts.Other]", "label", "acme.io/other"),
    ("a sum", 'v := pod.Labels[consts.Prefix + "x"]', "label", "acme.io/x"),
    ("a format", 'v := pod.Labels[fmt.Sprintf("%s/%s", "acme.io", "x")]', "label", "acme.io/x"),
    ("a format with an unknown end", 'v := pod.Labels[fmt.Sprintf("acme.io/%s", pod.Name)]', "label", "acme.io/*"),
    ("a local constant", 'const key = "acme.io/x"\nv := pod.Labels[key]', "label", "acme.io/x"),
    ("a list of keys", 'for _, key := range []string{Known, "acme.io/x"} { use(pod.Labels[key]) }', "label",
     "acme.io/x"),
    ("a list in another loop", 'for k := range m["a"] {\nuse(pod.Labels["acme.io/x"])\n}', "label", "acme.io/x"),
    ("a declared key", 'var key = "acme.io/x"\nuse(pod.Labels[key])', "label", "acme.io/x"),
    ("a declared map that is set", 'var m = map[string]string{"acme.io/x": "1"}\npod.SetLabels(m)', "label",
     "acme.io/x"),
    ("a variable of the package with a list", "for _, key := range all { use(pod.Labels[key]) }", "label",
     "acme.io/listed"),
    ("a loop with a prefix", 'for k := range pod.Annotations { if strings.HasPrefix(k, "acme.io/") { use() } }',
     "annotation", "acme.io/*"),
    ("a loop with a comparison", 'for k, v := range pod.Labels { if k == "acme.io/x" { use(v) } }', "label",
     "acme.io/x"),
    ("a loop with a switch", 'for k := range pod.Labels {\nswitch k {\ncase Known, "acme.io/x":\nuse()\n}\n}', "label",
     "acme.io/x"),
    ("a loop with a helper", "for k := range pod.Labels { if isOurs(corev1.ResourceName(k)) { use() } }", "label",
     "acme.io/gpu-*"),
    ("a selector of the client", 'c.List(ctx, l, client.MatchingLabels{"acme.io/x": "1"})', "label", "acme.io/x"),
    ("labels that must exist", 'c.List(ctx, l, client.HasLabels{"acme.io/x"})', "label", "acme.io/x"),
    ("a set", 's := labels.SelectorFromSet(labels.Set{"acme.io/x": "1"})', "label", "acme.io/x"),
    ("a requirement", 'r, _ := labels.NewRequirement("acme.io/x", op, nil)', "label", "acme.io/x"),
    ("a selector", 's := metav1.LabelSelector{MatchLabels: map[string]string{"acme.io/x": "1"}}', "label",
     "acme.io/x"),
    ("a requirement of a selector", 'x := []metav1.LabelSelectorRequirement{{Key: "acme.io/x", Operator: op}}',
     "label", "acme.io/x"),
    ("an unstructured path", 'v, _, _ := unstructured.NestedString(o, "metadata", "labels", "acme.io/x")', "label",
     "acme.io/x"),
    ("an unstructured map",
     'm, _, _ := unstructured.NestedStringMap(o, "metadata", "annotations")\nuse(m["acme.io/x"])', "annotation",
     "acme.io/x"),
    ("a helper of Kubernetes", 'metav1.HasAnnotation(pod.ObjectMeta, "acme.io/x")', "annotation", "acme.io/x"),
    ("an index", 'm.IndexField(ctx, o, fmt.Sprintf("metadata.labels.%s", "acme.io/x"), f)', "label", "acme.io/x"),
    ("a patch", 'p := map[string]any{"metadata": map[string]any{"labels": map[string]any{"acme.io/x": "1"}}}',
     "label", "acme.io/x"),
    ("a new object", 'o := metav1.ObjectMeta{Annotations: map[string]string{"acme.io/x": "1"}}', "annotation",
     "acme.io/x"),
    ("a map that is set", 'm := map[string]string{}\nm["acme.io/x"] = "1"\npod.SetLabels(m)', "label", "acme.io/x"),
    ("a parameter with a map", "readMap(pod.Labels)", "label", "acme.io/from-map"),
    ("a parameter with a key", 'readKey(pod, "acme.io/x")', "label", "acme.io/x"),
    ("a function in a variable",
     'get := func(key string) string { return pod.Labels[key] }\nuse(get("acme.io/x"))', "label", "acme.io/x"),
    ("a result with a map", 'use(mapOf(pod)["acme.io/x"])', "annotation", "acme.io/x"),
    ("a field with the name of a label", "use(pod.Labels[s.configured])", "label", "acme.io/default"),
    ("a field with a map", 's.kept = pod.Labels\nuse(s.kept["acme.io/x"])', "label", "acme.io/x"),
]  # fmt: skip
"""Title, Go source, the map and the key that is found."""

UNKNOWN = [
    ("an unknown key", "v := pod.Labels[other.Key]", "label: the key of `pod.Labels[other.Key]` cannot be found"),
    ("a key that is set later", "use(pod.Labels[later])", "cannot be found"),
    ("a function value", "get := pod.GetLabels\nuse(get()[Known])", "is not understood"),
    ("a pointer", "m := &pod.Labels\nuse((*m)[Known])", "is not understood"),
    ("a list of maps", "list = append(list, pod.Labels)", "is not understood"),
    ("a map of maps", "seen[pod.Name] = pod.Labels", "is not understood"),
    ("maps from a list", "for _, m := range list { pod.SetLabels(m) }", "all are copied"),
    ("a selector in a text", 'o := metav1.ListOptions{LabelSelector: "acme.io/x=1"}', "is not understood"),
    ("the keys as a list", "k := slices.Sorted(maps.Keys(pod.Labels))", "is not understood"),
    ("a function literal", 'func(m map[string]string) { use(m["acme.io/x"]) }(pod.Labels)', "is not understood"),
    ("a key from outside", "v := pod.Labels[os.Getenv(name)]", "cannot be found"),
    ("a whole copy", "maps.Copy(target, pod.GetLabels())",
     "labels: all are copied by `maps.Copy(target, pod.GetLabels())`"),
    ("a copy by name", "other.Labels = pod.Labels", "labels: all are copied by `other.Labels=pod.Labels`"),
    ("a copy in a new object", "o := metav1.ObjectMeta{Labels: pod.Labels}", "all are copied"),
    ("a copy with a variable", "m := pod.GetLabels()\nother.SetLabels(m)", "all are copied"),
    ("a copy in a loop", "for k, v := range pod.Labels { other.Labels[k] = v }", "all are copied"),
    ("a loop over values", "for _, v := range pod.Labels { use(v) }", "is not understood"),
    ("a loop with an unknown function", "for k := range pod.Labels { if match(k) { use() } }", "is not understood"),
    ("a suffix", 'for k := range pod.Labels { if strings.HasSuffix(k, "/x") { use() } }', "cannot be found"),
    ("an unknown function", "hand(pod.Labels)", "is not understood"),
    ("a parsed selector", "s, err := labels.Parse(text)", "is not understood"),
    ("a path in a variable", 'p := []string{"metadata", "labels"}', "is not understood"),
    ("a path with a variable", 'v, _, _ := unstructured.NestedString(o, "metadata", part, key)', "is not understood"),
    ("a patch of one text", 'p := "/metadata/labels/acme.io~1x"', "is not understood"),
    ("an exported helper without a call", "func Get(pod *corev1.Pod, key string) string { return pod.Labels[key] }",
     "cannot be found"),
]  # fmt: skip
"""Title, Go source, and a part of the line that reports it."""

HARMLESS = [
    "if pod.Labels == nil { pod.Labels = map[string]string{} }",
    "n := len(pod.Annotations)",
    'log.Info("seen", "labels", pod.Labels)',
    f'v := pod.Labels["{KNOWN}"]',
    f'm := pod.GetLabels()\nm["{KNOWN}"] = "1"\npod.SetLabels(m)',
    '// pod.Labels["acme.io/x"]',
    'text := `pod.Labels["acme.io/x"]`',
]

BEFORE = """package p

import (
	"fmt"
	"strings"
	"%(module)s/pkg/consts"
	other "example.com/other"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	Known = "kai.scheduler/queue"
	Local = "acme.io/local"
)

var later = Known
var all = []string{Known, "acme.io/listed"}

func readMap(m map[string]string) { use(m["acme.io/from-map"]) }
func readKey(pod *corev1.Pod, key string) { use(pod.Labels[key]) }
func change() { later = os.Getenv("KEY") }
func known(pod *corev1.Pod) { readKey(pod, Known) }
func mapOf(pod *corev1.Pod) map[string]string { return pod.GetAnnotations() }
func isOurs(name corev1.ResourceName) bool { return strings.HasPrefix(string(name), "acme.io/gpu-") }
func options(s *S) { flags.StringVar(&s.configured, "key", "acme.io/default", "The key.") }

type S struct {
	configured string
	kept       map[string]string
}

"""


def checkout(folder: Path, source: str, name: str = "pkg/p/p.go") -> Path:
    """Write a checkout with a piece of Go source in a function, or beside the functions."""
    if not source.startswith("func "):
        source = f"func here(pod *corev1.Pod) {{\n{source}\n}}"
    for path, text in {
        "go.mod": f"module {MODULE}\n\ngo 1.26\n",
        "pkg/consts/consts.go": 'package consts\n\nconst Prefix = "acme.io/"\nconst Other = Prefix + "other"\n',
        name: BEFORE % {"module": MODULE} + source + "\n",
    }.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def reading(folder: Path, source: str) -> Reading:
    return read(checkout(folder, source), NEWEST, reviewed=())


def lines(folder: Path, source: str) -> list[str]:
    return list(missing([reading(folder, source)]))


@pytest.mark.parametrize(("title", "source", "kind", "key"), ACCESSES, ids=[row[0] for row in ACCESSES])
def test_an_access_is_found(tmp_path: Path, title: str, source: str, kind: str, key: str) -> None:
    keys = {(access.kind.value, k) for access in reading(tmp_path, source).accesses for k in access.keys}
    assert (kind, key) in keys, sorted(keys)
    assert any(
        f'{kind} "{key}" is read and is not among KAI_KEYS' in line for line in lines(tmp_path, source)
    )


@pytest.mark.parametrize(("title", "source", "part"), UNKNOWN, ids=[row[0] for row in UNKNOWN])
def test_what_cannot_be_understood_is_reported(tmp_path: Path, title: str, source: str, part: str) -> None:
    assert [line for line in lines(tmp_path, source) if part in line and "pkg/p/p.go:" in line]


@pytest.mark.parametrize("source", HARMLESS)
def test_other_source_is_not_reported(tmp_path: Path, source: str) -> None:
    assert lines(tmp_path, source) == []


@pytest.mark.parametrize("name", ["pkg/p/p_test.go", "pkg/test_utils/p.go", "cmd/e2e/p.go", "docs/p.go"])
def test_tests_are_not_read(tmp_path: Path, name: str) -> None:
    folder = checkout(tmp_path, 'v := pod.Labels["acme.io/x"]', name)
    assert read(folder, NEWEST, reviewed=()).accesses == ()


def test_a_line_names_the_place(tmp_path: Path) -> None:
    line = len(BEFORE.splitlines()) + 2
    assert lines(tmp_path, 'v := pod.Labels["acme.io/x"]') == [
        f'{tmp_path}/pkg/p/p.go:{line}: label "acme.io/x" is read and is not among KAI_KEYS'
    ]


def test_a_reviewed_access_has_the_keys_of_its_entry(tmp_path: Path) -> None:
    folder = checkout(tmp_path, "v := pod.Labels[other.Key]")
    known = Reviewed("p/p.go", "pod.Labels[other.Key]", (KNOWN,))
    new = Reviewed("p/p.go", "pod.Labels[other.Key]", ("acme.io/x",))
    assert list(missing([read(folder, NEWEST, [known])])) == []
    assert ["acme.io/x" in line for line in missing([read(folder, NEWEST, [new])])] == [True]


def test_a_reviewed_map_covers_each_key_and_a_reviewed_access_only_its_own(tmp_path: Path) -> None:
    folder = checkout(tmp_path, 'use(node.Labels["acme.io/x"], node.Labels["acme.io/y"])')
    whole = Reviewed("p/p.go", "node.Labels", reason="a Node", is_map=True)
    single = Reviewed("p/p.go", 'node.Labels["acme.io/x"]', reason="a Node")
    assert len(list(missing([read(folder, NEWEST, [whole])]))) == 0
    assert len(list(missing([read(folder, NEWEST, [single])]))) == 1


def test_an_entry_that_fits_nothing_is_reported(tmp_path: Path) -> None:
    entry = Reviewed("p/p.go", "pod.Labels[gone]", (KNOWN,))
    known = read(checkout(tmp_path, "v := pod.Labels[Known]"), NEWEST, [entry])
    assert next(stale([known], [entry])) == "kai_reviewed.py: `pod.Labels[gone]` in p/p.go fits no access"


def test_each_row_needs_an_access_of_its_releases(tmp_path: Path) -> None:
    row = next(row for row in TABLE if row.key == "kai.scheduler/task-priority")
    later = next(row for row in TABLE if row.since == "0.17.0" and row.kind is KeyKind.ANNOTATION)
    source = f'use(pod.Labels["{row.key}"], pod.Annotations["{later.key}"])'
    old = read(checkout(tmp_path, source), (0, 9, 8), reviewed=())
    assert [is_right for _, _, is_right in proof([old], [row])] == [True]
    assert [is_right for _, _, is_right in proof([old], [later])] == [True]
    empty = read(checkout(tmp_path / "empty", "use()"), (0, 17, 0), reviewed=())
    assert [is_right for _, _, is_right in proof([empty], [row])] == [False]
    assert [is_right for _, _, is_right in proof([old, empty], [later])] == [False]


def test_a_folder_that_is_no_checkout_of_kai_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "go.mod").write_text("module example.com/x\n", encoding="utf-8")
    for folder in (tmp_path, tmp_path / "missing"):
        assert main([str(folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_program_ends_with_1_for_a_new_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(checkout(tmp_path / "new", 'v := pod.Labels["acme.io/x"]'))]) == 1
    assert '"acme.io/x"' in capsys.readouterr().out
    assert main([f"{checkout(tmp_path / 'known', 'v := pod.Labels[Known]')}=0.17.0"]) == 0
    assert "in KAI 0.17.0: each key is KAI's or reviewed" in capsys.readouterr().out


def test_the_table_has_a_row_for_each_key_of_kai(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [folder for folder in os.environ.get("KAISHARE_KAI", "").split(":") if folder]
    if not folders:
        pytest.skip("NOT VERIFIED: KAISHARE_KAI must name checkouts of KAI, separated by colons")
    status = main([*folders, "--prove"])
    assert status == 0, capsys.readouterr().out
