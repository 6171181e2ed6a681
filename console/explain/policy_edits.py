"""Labels and annotations of a namespace that the command line of `explain` tries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kai import keys
from kai.kaishare_keys import PREFIX, SIZE_PREFIX
from service.names import is_label_key, is_label_value
from service.text import quoted, shorten
from webhook.policy.labels import PolicyMetadata, near_prefixes

Edit = tuple[str, str | None]  # a key with its new value; None removes the key


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceEdits:
    """Labels and annotations of a namespace that are tried without setting them."""

    labels: Sequence[Edit] = ()
    annotations: Sequence[Edit] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations)

    def applied(self, metadata: PolicyMetadata) -> PolicyMetadata:
        """Return the labels and annotations of a namespace after the edits."""
        labels = _edited(metadata.labels, self.labels)
        return PolicyMetadata.select(labels, _edited(metadata.annotations, self.annotations))

    def without_effect(self) -> Iterator[str]:
        """Yield a sentence for each edit of a key that is not part of a policy."""
        for kind, edited, prefixes in (
            ("label", self.labels, (PREFIX, SIZE_PREFIX)),
            ("annotation", self.annotations, (SIZE_PREFIX,)),
        ):
            others = [key for key, _ in edited if not key.startswith(prefixes) and key != keys.QUEUE_LABEL]
            near = dict(near_prefixes(others))
            for key in others:
                hint = f"; the nearest prefix is {near[key]}" if key in near else ""
                yield f"the {kind} {shorten(key)} has no effect{hint}"


def read_label_edit(text: str) -> Edit:
    """Read KEY=VALUE or KEY- of the command line as a label; ValueError if the API server would refuse it."""
    key, value = read_annotation_edit(text)
    if value is not None and not is_label_value(value):
        allowed = "a-z, A-Z, 0-9, -, _ and . in at most 63 characters, with a letter or digit first and last"
        raise ValueError(f"{quoted(value)} is not the value of a label; allowed: {allowed}")
    return key, value


def read_annotation_edit(text: str) -> Edit:
    """Read KEY=VALUE or KEY- of the command line; ValueError if the API server would refuse the key."""
    key, equals, value = text.partition("=")
    removes = not equals and key.endswith("-")
    if not (equals or removes) or not key:
        raise ValueError(f"{quoted(text)} is not allowed; allowed: KEY=VALUE, or KEY-")
    key = key[:-1] if removes else key
    if not is_label_key(key):
        raise ValueError(f"{quoted(key)} is not the key of a label; allowed: NAME or DOMAIN/NAME")
    return key, None if removes else value


def _edited(texts: Mapping[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    changes = dict(edits)
    kept = {key: value for key, value in texts.items() if key not in changes}
    return kept | {key: value for key, value in changes.items() if value is not None}
