"""Command lines that are understood as a whole: the words of plain scripts, and the number of processes."""

import shlex
import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kai.command_lines import script_words
from kai.one_command import may_become_option, one_command, processes

SCRIPTS = st.text(
    st.sampled_from("ab-=/ \t\n'\"\\$`#;&|<>()*?[]{}~!%é") | st.sampled_from("abv"), max_size=12
)


@given(SCRIPTS)
@example("a'b'\"c\"\\ d")
@example("a \\\n b")
@example("a b\\\n")
@example('"a\\b" "\\$a"')
@example("a#b #c")
@example("a\\")
@example("''")
def test_a_plain_script_has_the_words_that_a_shell_sees_also_with_one_more(script: str) -> None:
    command = one_command(["sh", "-c", f"printf %s\\\\0 {script}"])
    if command is None:
        return
    assert command.script_at == 2
    for more in ([], ["--x=0.5"]):
        line = " ".join([f"printf %s\\\\0 {script}", *more])
        words = [*command.words[2:], *more] or [""]
        for shell in ("bash", "dash"):
            done = subprocess.run([shell, "-c", line], capture_output=True, check=False, text=True)
            assert done.stdout.split("\0")[:-1] == words, (shell, line)


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8), min_size=1, max_size=6
    )
)
def test_quoted_words_are_plain(words: list[str]) -> None:
    command = one_command(["/bin/bash", "-ec", "exec " + shlex.join(words)])
    if any("$(" in word for word in words):
        assert command is None
    else:
        assert command is not None
        assert list(command.words) == words


@pytest.mark.parametrize(
    "line",
    [
        [], ["sh"], ["bash", "start.sh"], ["sh", "-c"], ["sh", "-c", ""], ["sh", "-nc", "vllm serve M"],
        ["sh", "-kc", "vllm serve M"], ["bash", "-o", "pipefail", "-c", "vllm serve M"], ["zsh", "-c", "vllm serve =M"],
        *(["sh", "-c", script] for script in (
            "vllm serve M\n", "vllm serve M; sleep 1", "vllm serve M &", "a && vllm serve M", "vllm serve M | tee log",
            "vllm serve M >log", "vllm serve M # comment", "vllm serve $M", 'vllm serve "$M"', "vllm serve '$(M)'",
            "vllm serve `m`", "vllm serve ~/m", "vllm serve m*", "vllm serve {a,b}", "vllm serve 'M", "vllm serve M\\",
            "vllm serve " + "x" * 16_384,
        )),
    ],
    ids=lambda line: " ".join(line)[:40],
)  # fmt: skip
def test_other_lines_are_not_understood(line: Sequence[str]) -> None:
    command = one_command(line)
    assert command is None or "vllm" not in command.words


@pytest.mark.parametrize(
    ("word", "may"),
    [
        ("M", False), ("/models/$(NAME)", False), ("--port=$(PORT)", False), ("$$(NAME)", False), ("$(NAME)", True),
        ("--$(NAME)", True), ("-$(NAME)=1", True), ("$$$(NAME)", False),
    ],
)  # fmt: skip
def test_a_word_that_kubernetes_expands_may_become_another_option(word: str, may: bool) -> None:
    assert may_become_option(word) is may


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("python train.py", 1),
        ("python -m torch.utils.collect_env", 1),
        ("torchrun train.py --nproc-per-node 8", 1),
        ("torchrun --standalone --nproc_per_node=2 train.py", 2),
        ("torchrun --nnodes 1 --nproc-per-node 4 -m train --nproc-per-node 8", 4),
        ("python3 -u -m torch.distributed.run --nproc-per-node 3 train.py", 3),
        ("python -m torch.distributed.launch --nproc_per_node=2 train.py", 2),
        ("torchrun --nproc-per-node auto train.py", None),
        ("torchrun --nproc-per-node $(N) train.py", None),
        ("torchrun --new-option 3 --nproc-per-node 2 train.py", None),
        ("torchrun --nproc 2 train.py", None),
        ("accelerate launch --num_processes 2 --mixed_precision bf16 train.py", 2),
        ("accelerate launch train.py", None),
        ("accelerate launch --config_file c.yaml train.py", None),
        ("accelerate test", None),
        ("deepspeed --num_gpus 4 train.py", 4),
        ("deepspeed train.py --num_gpus 4", None),
        ("mpirun --allow-run-as-root -np 4 python train.py", 4),
        ("mpirun -n 2 a : -n 2 b", None),
        ("mpirun python train.py", None),
        ("env A=1 torchrun --nproc-per-node 2 train.py", None),
        ("gunicorn -w 4 app:app", None),
        ("sh -c 'torchrun --nproc-per-node 2 train.py'", 2),
        ("sh -c 'cd /w && torchrun --nproc-per-node 2 train.py'", None),
        ("sh -c 'pip install x && python train.py 2>&1 | tee log'", 1),
        ("sh -c 'python a.py & python b.py'", None),
    ],
)  # fmt: skip
def test_the_number_of_processes(line: str, count: int | None) -> None:
    words = shlex.split(line)
    command = one_command(words)
    assert processes(command, command.words if command else script_words(words)) == count


def test_a_variable_of_the_launcher_hides_the_number() -> None:
    words = ["torchrun", "train.py"]
    assert processes(one_command(words), words, ["PET_NPROC_PER_NODE"]) is None
    given = ["torchrun", "--nproc-per-node", "2", "train.py"]
    assert processes(one_command(given), given, ["PET_NPROC_PER_NODE"]) == 2
