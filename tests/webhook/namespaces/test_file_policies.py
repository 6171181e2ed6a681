"""Namespace objects in files: what is read of them, what is refused in one line, and changes while they serve."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.webhook_process import running
from webhook.namespaces import file_policies
from webhook.namespaces.file_policies import FilePolicies, PoliciesError, read_namespaces

NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata:
  name: vision
"""


def test_only_the_metadata_of_the_policy_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text(
        NAMESPACE + "  labels: {kai.scheduler/queue: vision, size.kaishare.dev/train: '0.5', team: a}\n"
        "  annotations: {size.kaishare.dev/train: 'app in (a,b)', kaishare.dev/mode: x, note: long}\n"
    )
    (metadata,) = read_namespaces(file).values()
    assert metadata.labels == {"kai.scheduler/queue": "vision", "size.kaishare.dev/train": "0.5"}
    assert metadata.annotations == {"size.kaishare.dev/train": "app in (a,b)"}
    policy = metadata.policy("vision")
    assert policy is not None
    assert (policy.problems, [size.name for size in policy.sizes.selecting]) == ((), ["train"])


NO_DOCUMENT = "contains no document; for no namespaces, write a List with items: []"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  labels: [a]\n", "metadata.labels must be a map"),
        ("  labels: []\n", "metadata.labels must be a map"),
        ('  labels: ""\n', "metadata.labels must be a map"),
        ("  annotations: false\n", "metadata.annotations must be a map"),
        ("  annotations: text\n", "metadata.annotations must be a map"),
        ("  labels: {size.kaishare.dev/train: 0.5}\n", "label size.kaishare.dev/train: 0.5 must be a string; put it in quotes"),
        ("  annotations: {a: true}\n", "annotation a: True must be a string; put it in quotes"),
        ("  annotations: {1: a}\n", "annotation 1: a must be a string; put it in quotes"),
    ],
)  # fmt: skip
def test_metadata_of_another_type_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text(NAMESPACE + text)
    with pytest.raises(PoliciesError) as caught:
        read_namespaces(file)
    assert str(caught.value) == f'{file}: namespace "vision": {problem}'


@pytest.mark.parametrize("text", ["", "\n\n", "# all gone\n", "---\n"])
def test_a_file_without_a_document_is_refused(tmp_path: Path, text: str) -> None:
    """`kubectl get namespaces -o yaml > FILE` leaves an empty file while the API server is away."""
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    file = tmp_path / "b.yaml"
    file.write_text(text)
    for path in (file, tmp_path):
        with pytest.raises(PoliciesError) as caught:
            read_namespaces(path)
        assert str(caught.value) == f"{file}: {NO_DOCUMENT}"
    file.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    assert read_namespaces(file) == {}


def test_a_link_that_leads_nowhere_is_refused_unless_it_is_hidden(tmp_path: Path) -> None:
    """Its file may be missing for a moment, as between two commands that swap a directory."""
    (tmp_path / "a.yaml").write_text(NAMESPACE)
    (tmp_path / ".#a.yaml").symlink_to("me@host.1:2")  # Emacs
    assert list(read_namespaces(tmp_path)) == ["vision"]
    (tmp_path / "b.yaml").symlink_to("gone")
    with pytest.raises(PoliciesError) as caught:
        read_namespaces(tmp_path)
    assert str(caught.value) == f"{tmp_path}/b.yaml: No such file or directory"
    (tmp_path / "empty").mkdir()
    with pytest.raises(PoliciesError, match=r"empty: the directory has no \.yaml, \.yml or \.json file$"):
        read_namespaces(tmp_path / "empty")


def namespace(name: str, fraction: str) -> str:
    labels = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": fraction}
    return json.dumps({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})


@pytest.fixture
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_policies, "LOOK_EVERY_SECONDS", 0.01)


@contextlib.asynccontextmanager
async def followed(path: Path, problems: list[str]) -> AsyncIterator[Callable[[], dict[str, str | None]]]:
    """Follow files; yields a function that returns the fraction of each namespace."""
    policies = FilePolicies(path, on_broken=lambda error: problems.append(str(error)))
    task = asyncio.create_task(policies.run())
    try:
        yield lambda: {
            name: each.share.value if each.share else None for name, each in policies.all().items()
        }
    finally:
        task.cancel()
        await asyncio.wait([task])


def edit(file: Path) -> None:
    file.write_text(namespace("team-a", "0.25"))


def keep_size_and_time(file: Path) -> None:
    other = file.with_name("other")
    edit(other)
    shutil.copystat(file, other)
    shutil.copy2(other, file)


def swap_links(file: Path) -> None:
    """As a mounted ConfigMap changes."""
    for version, fraction in (("..1", "0.5"), ("..2", "0.25")):
        (file.parent / version).mkdir()
        (file.parent / version / file.name).write_text(namespace("team-a", fraction))
    (file.parent / "..data").symlink_to("..2")
    file.unlink()
    file.symlink_to(f"..data/{file.name}")
    shutil.rmtree(file.parent / "..1")


@pytest.mark.usefixtures("_look_often")
@pytest.mark.parametrize("change", [edit, keep_size_and_time, swap_links])
@pytest.mark.parametrize("is_directory", [False, True])
async def test_a_change_is_loaded(tmp_path: Path, change: Callable[[Path], None], is_directory: bool) -> None:
    problems: list[str] = []
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.50"))
    async with followed(tmp_path if is_directory else file, problems) as fractions:
        change(file)
        await until(lambda: fractions() == {"team-a": "0.25"})
        (tmp_path / "b.json").write_text(namespace("team-b", "0.4"))
        await until(lambda: ("team-b" in fractions()) is is_directory)


@pytest.mark.usefixtures("_look_often")
@pytest.mark.parametrize(
    ("text", "problem"),
    [("kind: Namespace\nmetadata: {labels: [}\n", ", line 2: not YAML"), ("", f": {NO_DOCUMENT}"), (None, ": No such file")],
    ids=["broken", "empty", "gone"],
)  # fmt: skip
async def test_a_broken_edit_is_reported_once_and_the_last_valid_policies_stay(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    problems: list[str] = []
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with followed(file, problems) as fractions:
        file.unlink() if text is None else file.write_text(text)
        await until(lambda: problems)
        await asyncio.sleep(0.1)  # several more looks
        assert (len(problems), fractions()) == (1, {"team-a": "0.5"})
        assert problems[0].startswith(f"{file}{problem}")
        edit(file)
        await until(lambda: fractions() == {"team-a": "0.25"})


@pytest.mark.usefixtures("_look_often")
@pytest.mark.parametrize(
    "rests", [True, False], ids=["written during one read", "beside a file that never rests"]
)
async def test_a_change_during_the_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: bool) -> None:
    reads: list[int] = []

    def read(path: Path) -> object:
        namespaces = read_namespaces(path)
        reads.append(len(namespaces))
        if not rests:
            (path / "notes.txt").write_text("x" * len(reads))
        elif len(reads) == 1:
            (path / "b.yaml").write_text(namespace("team-b", "0.25"))
        return namespaces

    (tmp_path / "a.yaml").write_text(namespace("team-a", "0.5"))
    async with followed(tmp_path, []) as fractions:
        monkeypatch.setattr(file_policies, "read_namespaces", read)
        edit(tmp_path / "a.yaml")
        await until(lambda: fractions().get("team-a") == "0.25")
    assert reads == [1, 2] if rests else len(reads) >= 4


@pytest.mark.usefixtures("_look_often")
@pytest.mark.parametrize(
    "error", [OSError("the disk is slow"), PoliciesError("policies.yaml: Too many open files")]
)
async def test_a_file_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    problems: list[str] = []
    failures = [error, error]

    def read(path: Path) -> object:
        if failures:
            raise failures.pop()
        return read_namespaces(path)

    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    monkeypatch.setattr(file_policies, "_RETRY_SECONDS", 0.1)
    async with followed(file, problems) as fractions:
        monkeypatch.setattr(file_policies, "read_namespaces", read)
        edit(file)
        await until(lambda: fractions() == {"team-a": "0.25"})
    assert len(problems) == 1


async def test_a_reload_is_logged_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_policies, "LOOK_EVERY_SECONDS", 0.05)
    file = tmp_path / "policies.yaml"
    file.write_text(namespace("team-a", "0.5"))
    async with running(tmp_path, file) as live:
        for count in (1, 2):  # the second edit brings no new problem of team-a
            file.write_text("\n---\n".join(namespace(f"team-{name}", "2") for name in "ab"[:count]))
            await until(lambda: len(live.logged("policies changed")) == count)  # noqa: B023
        invalid = [line["namespace"] for line in live.logged("policy invalid")]
        assert invalid == ["team-a", "team-b"]
        series = 'kaishare_webhook_policy_invalid{label="kaishare.dev/gpu-fraction",namespace="team-a"}'
        assert await live.figure(series) == 1
        file.write_text("")
        (line,) = await until(lambda: live.logged("policies not reloaded, keeping the last valid ones"))
        assert (line["level"], line["problem"]) == ("error", f"{file}: {NO_DOCUMENT}")
        assert await live.errors("policies") == 1
        assert (await live.get("/readyz")).status == 200
