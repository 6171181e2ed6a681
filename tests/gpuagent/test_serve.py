"""Small parts of `serve`."""

import pytest

from gpuagent.pods.inventory import Inventory
from gpuagent.serve import _labelled_gpus


@pytest.mark.parametrize(
    ("text", "count"),
    [("8", 8), ("0", 0), ("", None), ("-1", None), ("8 GPUs", None), ("9" * 5, None), ("\u0668", None)],
)
def test_the_nodes_label_counts_its_gpus_if_it_is_a_number(text: str, count: int | None) -> None:
    assert _labelled_gpus(Inventory(pods={}, node_labels={"nvidia.com/gpu.count": text})) == count


def test_without_a_label_the_number_of_gpus_is_unknown() -> None:
    assert _labelled_gpus(None) is None
    assert _labelled_gpus(Inventory(pods={})) is None
    assert _labelled_gpus(Inventory(pods={}, node_labels={})) is None
