"""Runs a module with a limit of open files: `python -m tests.support.limited_files 64 gpuagent serve …`."""

import os
import resource
import sys

if __name__ == "__main__":
    files, *command = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    os.execv(sys.executable, [sys.executable, "-m", *command])
