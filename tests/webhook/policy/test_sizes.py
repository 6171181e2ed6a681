"""Sizes: which share a pod gets, what is invalid, and what its author is told."""

import json
from typing import Any

import pytest

from kai.kaishare_keys import SIZE_PREFIX
from tests.support.decisions import decide, ours, policy_of
from tests.support.pods import container, gpu_container, pod, view
from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy, PolicyMetadata, label_problems
from webhook.policy.patch import mutate
from webhook.policy.reasons import LONGEST_WARNING, Reason
from webhook.policy.sizes import NO_CAPS, Source, read_sizes, selector_overlaps
from webhook.policy.verify import verify

VISION = {"train": "0.5", "serve": "0.25"}
SELECTORS = {"train": "batch.kubernetes.io/job-name", "serve": "app in (api,web)"}
WEB, JOB = {"app": "web"}, {"batch.kubernetes.io/job-name": "resnet"}


def keyed(texts: dict[str, str]) -> dict[str, str]:
    return {SIZE_PREFIX + name: text for name, text in texts.items()}


def policy(
    sizes: dict[str, str], selectors: dict[str, str] | None = None, namespace: str = "vision", **labels: str
) -> NamespacePolicy:
    """Return a policy of queue `vision`; keywords are kaishare's labels with `_` for `-`."""
    own = {"kai.scheduler/queue": "vision"} | ours(**labels) | keyed(sizes)
    return policy_of(own, keyed(selectors or {}), namespace=namespace)


def decided(policy: NamespacePolicy, document: dict[str, Any], **rules: Any) -> Decision:
    return decide(policy, document, DecisionSettings(**rules))


def named(name: str) -> dict[str, str]:
    return {"kaishare.dev/size": name}


# title, pod, reason, annotations that give a share and record the decision
CONVERTED = {"gpu-fraction-container-name": "main", "kaishare.dev/reason": "whole-gpu-converted"}
CHOICES: list[tuple[str, dict[str, Any], str, Source | None, dict[str, str]]] = [
    ("a selector with a key", pod(gpu_container(), labels=JOB), "whole-gpu-converted", Source.SIZE_SELECTOR,
     CONVERTED | {"gpu-fraction": "0.5", "kaishare.dev/size": "train"}),
    ("a selector with values", pod(gpu_container(), labels=WEB), "whole-gpu-converted", Source.SIZE_SELECTOR,
     CONVERTED | {"gpu-fraction": "0.25", "kaishare.dev/size": "serve"}),
    ("the label beats a selector", pod(gpu_container(), labels=WEB | named("train")), "whole-gpu-converted",
     Source.SIZE_LABEL, CONVERTED | {"gpu-fraction": "0.5", "kaishare.dev/size": "train"}),
    ("the label settles an ambiguity", pod(gpu_container(), labels=WEB | JOB | named("serve")),
     "whole-gpu-converted", Source.SIZE_LABEL, CONVERTED | {"gpu-fraction": "0.25", "kaishare.dev/size": "serve"}),
    ("no size applies", pod(gpu_container()), "whole-gpu-converted", Source.DEFAULT_SHARE, CONVERTED | {"gpu-fraction": "0.1"}),
    ("a named size without a GPU", pod(container("a"), labels=named("serve")), "share-injected", Source.SIZE_LABEL,
     {"gpu-fraction": "0.25", "gpu-fraction-container-name": "a", "kaishare.dev/reason": "share-injected",
      "kaishare.dev/size": "serve"}),
    ("a selected size without a GPU", pod(labels=WEB), "no-gpu", None, {"kaishare.dev/reason": "no-gpu"}),
    ("an own share", pod(labels=named("train"), annotations={"gpu-fraction": "0.3"}), "own-share", Source.OWN_SHARE,
     {"kaishare.dev/reason": "own-share"}),
    ("an own share and an unknown size", pod(labels=named("no"), annotations={"gpu-fraction": "0.3"}), "own-share",
     Source.OWN_SHARE, {"kaishare.dev/reason": "own-share"}),
    ("two selectors", pod(gpu_container(), labels=WEB | JOB), "size-ambiguous", None, {"kaishare.dev/reason": "size-ambiguous"}),
    ("two selectors without a GPU", pod(labels=WEB | JOB), "no-gpu", None, {"kaishare.dev/reason": "no-gpu"}),
    ("an unknown size", pod(gpu_container(), labels=named("trian")), "size-unknown", None,
     {"kaishare.dev/reason": "size-unknown"}),
    ("an unknown size without a GPU", pod(labels=named("trian")), "size-unknown", None, {"kaishare.dev/reason": "size-unknown"}),
    ("an empty name", pod(gpu_container(), labels=named("") | WEB), "size-unknown", None,
     {"kaishare.dev/reason": "size-unknown"}),
    ("two GPUs", pod(gpu_container(count="2"), labels=WEB), "several-gpus", None, {"kaishare.dev/reason": "several-gpus"}),
    ("two GPUs and two selectors", pod(gpu_container(count="2"), labels=WEB | JOB), "several-gpus", None,
     {"kaishare.dev/reason": "several-gpus"}),
    ("a GPU that is kept", pod(gpu_container(), labels=WEB, annotations={"kaishare.dev/whole-gpu": "true"}),
     "whole-gpu-kept", None, {"kaishare.dev/reason": "whole-gpu-kept"}),
    ("a claim", pod(gpu_container(), labels=named("train"), resourceClaims=[{"name": "gpu"}]), "resource-claims", None,
     {"kaishare.dev/reason": "resource-claims"}),
    ("another resource", pod(container(limits={"amd.com/gpu": "1"}), labels=named("train")), "other-gpu-resource", None,
     {"kaishare.dev/reason": "other-gpu-resource"}),
    ("the second container", pod(container("a"), gpu_container("b"), labels=WEB), "container-not-first", None,
     {"kaishare.dev/reason": "container-not-first"}),
    ("a record that exists", pod(gpu_container(), labels=WEB,
                                 annotations={"kaishare.dev/reason": "", "kaishare.dev/size": "old"}),
     "whole-gpu-converted", Source.SIZE_SELECTOR, {"gpu-fraction": "0.25", "gpu-fraction-container-name": "main"}),
]  # fmt: skip


@pytest.mark.parametrize("case", CHOICES, ids=lambda case: case[0])
def test_the_size_of_a_pod(case: tuple[str, dict[str, Any], str, Source | None, dict[str, str]]) -> None:
    _, document, reason, source, annotations = case
    decision = decided(policy(VISION, SELECTORS, gpu_fraction="0.1"), document)
    assert (decision.reason.code, decision.source) == (reason, source)
    assert decision.changes.annotations == annotations
    assert decision.changes.scheduler == "kai-scheduler"


def test_a_pod_that_gets_the_share_again_is_mended_by_its_size() -> None:
    """A LimitRange adds the key that the conversion removed (see `gpu-removed-again`)."""
    of_size = {"gpu-fraction": "0.25", "gpu-fraction-container-name": "main"}
    vision = policy(VISION, SELECTORS, gpu_fraction="0.1")
    decision = decided(vision, pod(gpu_container(), labels=WEB, annotations=of_size))
    assert decision.reason is Reason.GPU_REMOVED_AGAIN
    assert decision.changes.annotations == {
        "kaishare.dev/reason": "gpu-removed-again",
        "kaishare.dev/size": "serve",
    }
    assert decided(vision, pod(gpu_container(), annotations=of_size)).reason is Reason.OWN_SHARE
    of_default = of_size | {"gpu-fraction": "0.1"}
    assert decided(vision, pod(gpu_container(), annotations=of_default)).reason is Reason.GPU_REMOVED_AGAIN


@pytest.mark.parametrize("share_for", ["whole-gpu", "marked", "all"])
def test_a_whole_gpu_by_size_converts_nothing(share_for: str) -> None:
    whole = policy({"full": "1"}, {"full": "app=web"}, share_for=share_for, gpu_fraction="0.5")
    decision = decided(whole, pod(gpu_container(), labels=WEB))
    assert decision.reason is Reason.SIZE_WHOLE_GPU
    assert decision.changes.annotations == {
        "kaishare.dev/reason": "size-whole-gpu",
        "kaishare.dev/size": "full",
    }
    assert decision.changes.removed_gpu_keys == ()
    without = decided(whole, pod(labels=named("full")))
    assert without.reason is Reason.SIZE_WHOLE_GPU
    assert "gpu-fraction" not in without.changes.annotations


@pytest.mark.parametrize("rules", [{"inject_shares": False}, {}])
def test_a_doubtful_name_counts_where_shares_are_not_given(rules: dict[str, Any]) -> None:
    scheduler = {} if rules else {"scheduler": "default-scheduler"}
    off = policy(VISION, SELECTORS, **scheduler)
    expected = Reason.SHARES_OFF if rules else Reason.SCHEDULER_NOT_KAI
    assert decided(off, pod(gpu_container(), labels=named("train")), **rules).reason is expected
    assert decided(off, pod(gpu_container(), labels=WEB | JOB), **rules).reason is expected
    assert decided(off, pod(gpu_container(), labels=named("no")), **rules).reason is Reason.SIZE_UNKNOWN


# sizes, selectors, the pod's labels, reason, share
OTHERS: list[tuple[str, dict[str, str], dict[str, str], dict[str, str], str, str | None]] = [
    ("GiB are written in MiB", {"a": "8Gi"}, {}, named("a"), "whole-gpu-converted", "8192"),
    ("MiB are written in MiB", {"a": "2000Mi"}, {}, named("a"), "whole-gpu-converted", "2000"),
    ("a name in a namespace without sizes", {}, {}, named("train"), "size-unknown", None),
    ("a valid and an invalid size", {"a": "0.5", "b": "7"}, {"a": "app=web", "b": "app"}, WEB, "size-ambiguous", None),
    ("a name beside an invalid selector", VISION, {"serve": "app in ("}, named("serve"), "whole-gpu-converted", "0.25"),
    ("a selector beside an invalid one", VISION, {"serve": "app in (", "train": "app=web"}, WEB, "whole-gpu-converted", "0.5"),
    ("none of the selectors beside an invalid one", VISION, {"serve": "app in ("}, {}, "policy-invalid", None),
]  # fmt: skip


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case[0])
def test_further_sizes(
    case: tuple[str, dict[str, str], dict[str, str], dict[str, str], str, str | None],
) -> None:
    _, sizes, selectors, labels, reason, share = case
    decision = decided(policy(sizes, selectors, gpu_fraction="0.9"), pod(gpu_container(), labels=labels))
    annotations = decision.changes.annotations
    assert decision.reason.code == reason
    assert annotations.get("gpu-fraction", annotations.get("gpu-memory")) == share
    if not sizes:
        assert decision.finding.sentence == 'size "train" is not defined here; the namespace has no sizes'


MANY = {f"s{number:02}": "0.5" for number in range(20)}
BAD: list[tuple[str, dict[str, str], dict[str, str], dict[str, str]]] = [
    ("value", {"a": "1.0"}, {}, named("a")),
    ("value by selector", {"a": "2000"}, {"a": "app=web"}, WEB),
    ("name", {"Train": "0.5"}, {}, named("Train")),
    ("long name", {"x" * 41: "0.5"}, {}, named("x" * 41)),
    ("seventeenth", MANY, {}, named("s16")),
    ("selector of the seventeenth", MANY, {"s16": "app=web"}, WEB),
    ("selector", {"a": "0.5"}, {"a": "app in ("}, WEB),
    ("another size's selector", VISION, {"serve": "app in ("}, WEB),
    ("empty selector", {"a": "0.5"}, {"a": ""}, WEB),
    ("selector of a key that the webhook writes", {"a": "0.5"}, {"a": "kai.scheduler/queue"}, WEB),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_an_invalid_size_gives_no_share(
    case: tuple[str, dict[str, str], dict[str, str], dict[str, str]],
) -> None:
    _, sizes, selectors, labels = case
    invalid = policy(sizes, selectors, gpu_fraction="0.9")
    decision = decided(invalid, pod(gpu_container(), labels=labels))
    assert decision.reason is Reason.POLICY_INVALID
    assert decision.changes.annotations == {"kaishare.dev/reason": "policy-invalid"}
    assert decision.changes.scheduler == "kai-scheduler"
    assert [warning.reason for warning in decision.warnings] == [Reason.POLICY_INVALID]
    assert invalid.state == "invalid"


def test_the_first_sixteen_names_in_byte_order_count() -> None:
    many = policy(MANY)
    assert decided(many, pod(gpu_container(), labels=named("s15"))).reason is Reason.WHOLE_GPU_CONVERTED
    assert (len(many.sizes.by_name), len(many.sizes.problems), many.more_problems) == (16, 4, 0)
    upper = policy(MANY | {"Z": "0.5"})
    assert decided(upper, pod(gpu_container(), labels=named("s15"))).reason is Reason.POLICY_INVALID


# labels beside the size, the size's value, a part of the problem
CAPS = [
    ({"max_gpu_fraction": "0.4"}, "0.5", "above this namespace's own kaishare.dev/max-gpu-fraction 0.4"),
    ({"max_gpu_fraction": "0.4"}, "1", "above this namespace's own"),
    ({"max_gpu_fraction": "1"}, "1", None),
    ({"max_gpu_fraction": "0.5"}, "0.5", None),
    ({"max_gpu_fraction": "0.5"}, "2000Mi", "cannot be compared with kaishare.dev/max-gpu-fraction"),
    ({"max_gpu_memory": "4096"}, "4Gi", None),
    ({"max_gpu_memory": "4095"}, "4Gi", "above this namespace's own kaishare.dev/max-gpu-memory 4095"),
    ({"max_gpu_memory": "4096"}, "0.02", "cannot be compared with kaishare.dev/max-gpu-memory"),
    ({"max_gpu_memory": "4096"}, "1", "cannot be compared with"),
    ({"max_gpu_memory": "4096", "max_gpu_fraction": "0.5"}, "0.5", None),
    ({"max_gpu_memory": "4096", "max_gpu_fraction": "0.5"}, "8Gi", "above this namespace's own"),
]


@pytest.mark.parametrize(("caps", "value", "problem"), CAPS)
def test_caps_bound_sizes(caps: dict[str, str], value: str, problem: str | None) -> None:
    problems = policy({"a": value}, **caps).problems
    assert [problem in str(entry) for entry in problems if problem] == ([True] if problem else [])
    assert bool(problems) is bool(problem)


@pytest.mark.parametrize("value", ["0.02", "0.5", "0.99", "1", "1Mi", "2000Mi", "8Gi", "999999999999999Mi"])
def test_allowed_values(value: str) -> None:
    assert policy({"a": value}).problems == ()


@pytest.mark.parametrize(
    "value",
    ["", "0", "0.01", "1.0", "1.5", "0.125", "2000", "0Mi", "01Mi", "8G", "8gi", "8GiB", "1Ti", "-1Gi", "0.5 ", "½"],
)  # fmt: skip
def test_other_values_are_named_with_what_is_allowed(value: str) -> None:
    (problem,) = policy({"a": value}).problems
    assert str(problem).startswith(f'size.kaishare.dev/a: "{value}" is not allowed; allowed: 0.02 to 0.99')


def test_enforce_denies_what_default_warns_about() -> None:
    enforced = policy(VISION, SELECTORS, mode="enforce")
    for labels, reason in (
        (named("trian"), "size-unknown"),
        (WEB | JOB, "size-ambiguous"),
        (named(""), "size-unknown"),
    ):
        mutation = mutate(
            enforced, json.dumps(pod(gpu_container(), labels=labels)).encode(), DecisionSettings()
        )
        assert [warning.reason.code for warning in mutation.decision.warnings] == [reason]
        final = pod(
            gpu_container(), labels=labels | {"kai.scheduler/queue": "vision"}, schedulerName="kai-scheduler"
        )
        verdict = verify(enforced, view(final), DecisionSettings(), "jane")
        assert [denial.reason.code for denial in verdict.denials] == [reason]


def test_enforce_judges_doubt_by_selectors_only_where_a_share_applies() -> None:
    enforced = policy(VISION, SELECTORS, mode="enforce")
    queue = {"kai.scheduler/queue": "vision"}
    plain = pod(labels=WEB | JOB | queue, schedulerName="kai-scheduler")
    assert verify(enforced, view(plain), DecisionSettings(), "jane").is_allowed
    unknown = pod(gpu_container(count="2"), labels=named("no") | queue, schedulerName="kai-scheduler")
    verdict = verify(enforced, view(unknown), DecisionSettings(), "jane")
    assert [denial.reason.code for denial in verdict.denials] == ["size-unknown"]


def test_messages_list_the_sizes_with_the_nearest_first() -> None:
    names = {f"serve-{letter * 20}": "0.5" for letter in "abcdefghijklmno"} | {"train": "0.5"}
    (warning,) = decided(policy(names), pod(gpu_container(), labels=named("trian"))).warnings
    assert warning.warning.startswith(
        'kaishare: size "trian" is not defined here; nearest first: train, serve-'
    )
    assert warning.warning.endswith(" and 14 more")
    assert len(warning.warning) <= LONGEST_WARNING
    assert all(name in warning.sentence for name in names)


@pytest.mark.parametrize("length", [1, 13, 30, 63])
def test_the_conversion_is_announced_in_one_short_warning(length: int) -> None:
    size = "s" * min(length, 40)
    vision = policy({size: "0.25"}, {size: "app=web"}, namespace="n" * length)
    (warning,) = decided(vision, pod(gpu_container("c" * length), labels=WEB)).warnings
    assert warning.reason.code == "whole-gpu-converted"
    assert len(warning.warning) <= LONGEST_WARNING
    assert "one whole GPU became gpu-fraction 0.25 by namespace n" in warning.warning
    assert warning.warning.endswith((f"(size {size})", "…)"))
    if length == 1:
        assert warning.warning == (
            "kaishare: container c: one whole GPU became gpu-fraction 0.25 by namespace n (size s)"
        )


def test_the_announcement_can_be_silenced() -> None:
    quiet = policy({}, gpu_fraction="0.5", announce="false")
    assert decided(quiet, pod(gpu_container())).warnings == ()
    (problem,) = policy({}, announce="no").problems
    assert "allowed: true, false" in str(problem)


def test_selectors_that_overlap_are_found() -> None:
    def overlaps(**selectors: str) -> list[tuple[str, str, str]]:
        sizes = read_sizes(keyed(dict.fromkeys(selectors, "0.5")), keyed(selectors), NO_CAPS)
        return [(first.name, second.name, what) for first, second, what in selector_overlaps(sizes)]

    assert overlaps(a="x=1,y", b="y,x==1") == [("a", "b", "the same selector")]
    assert overlaps(a="x=1,y", b="x=1,!y") == [("a", "b", "x=1 in their selectors")]
    assert overlaps(a="x=1", b="x=2", c="y", d="x in (1,2)") == []


def test_an_edit_is_judged_by_what_it_sets() -> None:
    def problems(
        before: tuple[dict[str, str], dict[str, str]], after: tuple[dict[str, str], dict[str, str]]
    ) -> list[str]:
        states = [PolicyMetadata(keyed(sizes), keyed(selectors)) for sizes, selectors in (after, before)]
        return [f"{'selector' * each.is_annotation}{each.label}" for each in label_problems(*states).first]

    a, b = SIZE_PREFIX + "a", SIZE_PREFIX + "b"
    assert problems(({}, {}), ({"a": "7"}, {})) == [a]
    assert problems(({"a": "7"}, {}), ({"a": "7", "b": "0.5"}, {})) == []
    assert problems(({"a": "0.5"}, {}), ({"a": "0.5"}, {"a": "app in ("})) == [f"selector{a}"]
    assert problems(({"a": "0.5"}, {"a": "app in ("}), ({"a": "0.4"}, {"a": "app in ("})) == []
    assert problems(({}, {"a": "app in ("}), ({"a": "0.4"}, {"a": "app in ("})) == [f"selector{a}"]
    assert problems(({"a": "0.5"}, {}), ({"a": "0.5"}, {"b": "app"})) == [f"selector{b}"]
    assert problems(({"a": "0.5"}, {"a": "app"}), ({}, {"a": "app"})) == []
    many = dict.fromkeys((f"m{number:02}" for number in range(16)), "0.5")
    assert problems((many, {}), (many | {"a": "0.5"}, {})) == [a, SIZE_PREFIX + "m15"][:1]
    assert problems((many | {"z": "0.5"}, {}), (many | {"z": "0.4"}, {})) == [SIZE_PREFIX + "z"]
    assert problems((many | {"z": "0.5"}, {}), (many | {"z": "0.5"}, {"m00": "app"})) == []


def test_at_most_sixteen_problems_are_described() -> None:
    sizes = {f"s{number:04}": "7" for number in range(2000)}
    orphans = {f"orphan{number:04}": "app" for number in range(500)}
    many = policy(sizes, orphans)
    assert (len(many.problems), many.more_problems) == (16, 2000 + 500 - 16)
    whole = label_problems(PolicyMetadata(keyed(sizes), keyed(orphans)))
    assert whole.count >= 2000
    assert len(whole.first) <= 16
