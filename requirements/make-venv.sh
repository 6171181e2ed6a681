#!/bin/sh
# Makes a virtual environment with the pinned requirements and this checkout in it.
# Usage: make-venv.sh PYTHON FOLDER REQUIREMENTS
# What is missing is said in one line that can be typed as it stands.
set -eu
python=$1 venv=$2 requirements=$3

if ! command -v "$python" >/dev/null 2>&1; then
  echo "apt-get install -y python3 python3-venv"
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$("$python" --version) is too old: kaishare needs Python 3.11 or newer (make PYTHON=python3.12 ...)" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
  echo "apt-get install -y python3-venv"
  exit 1
fi
if [ -L "$venv" ]; then
  echo "$venv is a link: remove it, since its target would be emptied" >&2
  exit 1
fi
echo "Creating the virtual environment $venv" >&2
"$python" -m venv --clear "$venv"
exec "$venv/bin/python" "$(dirname "$0")/install.py" "$requirements"
