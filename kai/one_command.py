"""Command lines that are understood as a whole: one program with its arguments, also in a shell.

A value is added to such a command line only, and only such a line tells how many processes a launcher starts.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kai.command_lines import LONGEST_COMMAND_LINE, program, shell_words

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash"})
_FLAGS: Final = re.compile(r"-[abcefhlmpuvx]+")
"""Flags that leave the words of a command as they are; `-n` runs nothing, `-k` takes words for variables."""
_TOKEN: Final = re.compile(
    r"""(?P<blank>[ \t]+)|\\(?P<continued>\n)|(?P<hash>\#)"""
    r"""|(?P<plain>[^\s'"\\;&|()<>$`*?\[\]{}~#\x00-\x1f\x7f]+)|'(?P<single>(?:[^'$]|\$(?!\())*)'"""
    r"""|"(?P<double>(?:[^"\\$`]|\\[\\"$`\n]|\\(?![\\"$`\n]).)*)"|\\(?P<escaped>[^\n])"""
)
"""A piece of a script of plain POSIX words; every other character may mean something to a shell.

Kubernetes expands `$(NAME)` in a script, within quotes, too.
"""
_ESCAPE: Final = re.compile(r"""\\(?:\n|([\\"$`]))""")
_PYTHON: Final = re.compile(r"python(?:3(?:\.[0-9]{1,2})?)?")
_PYTHON_FLAGS: Final = frozenset({"-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S"})
_EXPANDED: Final = re.compile(r"(?<!\$)(?:\$\$)*\$\(")


@dataclass(frozen=True, slots=True)
class OneCommand:
    """The one command that a command line runs."""

    words: Sequence[str]  # the program and its arguments, as the program gets them
    script_at: int | None = None  # the index of the script in the command line; None if no shell runs

    @property
    def module(self) -> str:
        """The module that Python runs; empty for other programs."""
        if not _PYTHON.fullmatch(program(self.words[0])):
            return ""
        at = 1
        while at < len(self.words) and self.words[at] in _PYTHON_FLAGS:
            at += 1
        return self.words[at + 1] if self.words[at : at + 1] == ["-m"] and at + 1 < len(self.words) else ""


def one_command(line: Sequence[str]) -> OneCommand | None:
    """Return the one command of a line; None for an empty or long line, and for a script that is not plain.

    A script is plain if it is one command of POSIX words, perhaps after `exec`, without expansions,
    redirections, separators and comments. A newline separates commands.
    """
    if not line or sum(map(len, line)) + len(line) > LONGEST_COMMAND_LINE:
        return None
    if program(line[0]) not in _SHELLS:
        return OneCommand(list(line))
    is_script = False
    for index, word in enumerate(line[1:], 1):
        if _FLAGS.fullmatch(word):
            is_script = is_script or "c" in word
            continue
        words = shell_words(word, _TOKEN, _ESCAPE, has_comments=False) if is_script else None
        if words and words[0] == "exec":
            words = words[1:]
        return OneCommand(words, index) if words else None
    return None


def may_become_option(word: str) -> bool:
    """Whether Kubernetes may make another option of a word, by the value of a variable `$(NAME)` in it."""
    expanded = _EXPANDED.search(word)
    if expanded is None:
        return False
    at = expanded.end() - len("$(")
    return "=" not in word[:at] if word.startswith("-") else at == 0


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A program that starts several processes of a script, and its options before the script, by blanks."""

    counts: str  # options with the number of processes
    flags: str  # options without a value
    values: str  # options with another value
    absent: int | None = None  # processes without one of `counts`; None if that is not known
    variable: str = ""  # a variable with the same meaning


TORCHRUN: Final = _Launcher(
    "--nproc-per-node",
    "--standalone --no-python --run-path -m --module",
    "--nnodes --node-rank --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts"
    " --monitor-interval --start-method --role --log-dir -r --redirects -t --tee --local-ranks-filter"
    " --master-addr --master-port --local-addr --logs-specs",
    absent=1,
    variable="PET_NPROC_PER_NODE",
)
_MPIRUN: Final = _Launcher(
    "-n -np --n --np", "--allow-run-as-root --oversubscribe", "--bind-to --map-by -x -H --host"
)
_LAUNCHERS: Final = {
    "torchrun": TORCHRUN,
    "accelerate": _Launcher(
        "--num-processes",
        "--multi-gpu --use-deepspeed --use-fsdp -m --module --no-python -q --quiet --debug",
        "--mixed-precision --num-machines --machine-rank --main-process-ip --main-process-port"
        " --dynamo-backend --gpu-ids --config-file",
    ),
    "deepspeed": _Launcher(
        "--num-gpus",
        "--module --no-python --no-local-rank",
        "--num-nodes --master-port --master-addr --launcher",
    ),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
}
"""Sources: torch/distributed/run.py, accelerate's commands/launch.py, deepspeed's runner.py, mpirun(1)."""
_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_SEVERAL: Final = {*_LAUNCHERS, *_MODULES, "horovodrun", "srun", "ray", "gunicorn", "xargs", "parallel"}
"""Programs and modules that start several processes; the number is read for those of `_LAUNCHERS` only."""
_COUNT: Final = re.compile(r"[1-9][0-9]{0,2}")


def processes(
    command: OneCommand | None, words: Sequence[str], variables: Collection[str] = ()
) -> int | None:
    """Return how many processes of a container may use the GPU; None if that cannot be read.

    `words` are those of its command line, or of its script, and `variables` the names in its environment.
    """
    names = {program(word) for word in words}
    if names.isdisjoint(_SEVERAL) and not any(map(_is_background, words)):
        return 1
    if command is None:
        return None
    if command.module in _MODULES:
        at = list(command.words).index(command.module) + 1
        return _count(TORCHRUN, command.words[at:], variables)
    name = program(command.words[0])
    if name not in _LAUNCHERS or (name == "accelerate" and command.words[1:2] != ["launch"]):
        return None
    return _count(_LAUNCHERS[name], command.words[2 if name == "accelerate" else 1 :], variables)


def _is_background(word: str) -> bool:
    """Whether a word of a script is an operator with `&`, other than `&&` and redirections such as `2>&1`."""
    return not word.strip(";&|()<>") and "&" in re.sub("&&|[<>]&|&>", "", word)


def _count(launcher: _Launcher, words: Sequence[str], variables: Collection[str]) -> int | None:
    """Read the number of processes from a launcher's options, which end at its script."""
    count = None if launcher.variable in variables else launcher.absent
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in launcher.flags.split() and not equals:
            continue
        counts = name in launcher.counts.split()
        if not counts and name not in launcher.values.split():
            return None
        value = value if equals else next(rest, "")
        if counts:
            count = int(value) if _COUNT.fullmatch(value) else None
            if count is None:
                return None
    return None if ":" in words else count
