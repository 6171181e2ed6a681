"""The rules that `doctor` and `why` share."""

import pytest

from console.cluster.rules import QueueTree, refuser_of, unreachable_webhook
from kai.releases import Version
from tests.support.cluster_facts import queue

OLD, NEW = (Version.parse("v0.12.23"),), (Version.parse("v0.16.5"),)
TREE = QueueTree(
    [queue("top", ""), queue("team", "top"), queue("lost", "gone"), queue("below", "lost")], is_whole=True
)
PART = QueueTree([queue("team", "top"), queue("lost", "gone")], missing=["gone"])


@pytest.mark.parametrize(
    ("tree", "name", "versions", "expected"),
    [
        (TREE, "team", (), ""),
        (TREE, "nowhere", (), "queue-missing: the queue nowhere does not exist"),
        (TREE, "top", NEW, "queue-not-leaf: the queue top has child queues (team), and"),
        (TREE, "below", (), "queue-missing: the queue below is below the queue gone, which does not exist"),
        (QueueTree([queue("top", "")]), "top", (), "queue-without-parent: the queue top has no parent queue: KAI before v0.13.0"),
        (QueueTree([queue("top", "")]), "top", OLD, "queue-without-parent: the queue top has no parent queue: KAI before v0.13.0"),
        (QueueTree([queue("top", "")]), "top", NEW, ""),
        (QueueTree([queue("a", "b"), queue("b", "a")]), "a", (), "queue-not-leaf: "),
        (PART, "team", (), ""),
        (PART, "nowhere", (), ""),
        (PART, "lost", (), "queue-missing: the queue lost has the parent gone, which"),
    ],
)  # fmt: skip
def test_unusable_queues(tree: QueueTree, name: str, versions: tuple[Version, ...], expected: str) -> None:
    fault = tree.fault(name, versions)
    assert f"{fault.code}: {fault.sentence}".startswith(expected) if fault and expected else not expected
    assert (fault is None) is (not expected)


def test_a_part_of_the_queues_proves_no_queue_missing() -> None:
    assert [name for name in ("team", "nowhere", "lost") if PART.is_known(name)] == ["lost"]
    assert TREE.is_known("nowhere")
    assert TREE.usable == ["team", "below"][::-1]


@pytest.mark.parametrize(
    ("message", "who", "fault"),
    [
        ('Internal error occurred: failed calling webhook "pods.mutate.kaishare.dev": EOF', "pods.mutate.kaishare.dev", "kaishare does not answer"),
        ('failed calling webhook "admission.kai-scheduler.svc": no endpoints', "admission.kai-scheduler.svc", "KAI's admission does not answer"),
        ('failed calling webhook "other": EOF', "other", "a webhook does not answer"),
        ('admission webhook "x" denied the request: failed calling webhook "pods.mutate.kaishare.dev"', "x", ""),
        ("ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no", "a", ""),
        ("exceeded quota: q, ", "", ""),
    ],
)  # fmt: skip
def test_a_refusal_names_who_refuses(message: str, who: str, fault: str) -> None:
    refuser = refuser_of(message)
    assert (refuser.name if refuser else "") == who
    unreachable = unreachable_webhook(message)
    assert (
        (unreachable is not None and unreachable.sentence.startswith(fault)) if fault else unreachable is None
    )
