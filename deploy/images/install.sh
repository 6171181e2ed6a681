#!/bin/sh
# Creates the folder that an image contains: a virtual environment with one service. All requirements are pinned by hash,
# all modules are compiled, and no installer is left inside.
# Usage: install.sh PYTHON FOLDER webhook|agent, in the root of the source tree
set -eu
python=$1 folder=$2 service=$3
case $service in
  webhook) commands="kaishare kaishare-webhook" left_out="" ;; # `helm test` runs `kaishare doctor` there
  agent) commands=kaishare-agent left_out="webhook console" ;;
  *)
    echo "unknown service: $service; allowed: webhook, agent" >&2
    exit 2
    ;;
esac

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
into() {
  environment=$1
  shift
  "$python" -m pip --python "$environment/bin/python" --disable-pip-version-check install --quiet --no-cache-dir \
    --no-compile --root-user-action=ignore "$@"
}

"$python" -m venv --without-pip "$build/tool"
into "$build/tool" --require-hashes --requirement requirements/build.txt
"$build/tool/bin/hatchling" build --target wheel --directory "$build" > "$build/log" 2>&1 || {
  cat "$build/log" >&2
  exit 1
}

"$python" -m venv --without-pip "$folder"
into "$folder" --require-hashes --only-binary :all: --requirement "requirements/$service.txt"
into "$folder" --no-deps --no-index "$build"/kaishare-*.whl

# The wheel is one: it has both services, since they share packages, and the command for people.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for package in $left_out; do
  rm -r "${packages:?}/$package"
done
for file in "${folder:?}"/bin/*; do # those of other packages go, too, but the interpreter's links stay
  case " $commands " in
    *" ${file##*/} "*) ;;
    *) [ -L "$file" ] || rm "$file" ;;
  esac
done

# A read-only root file system has no place for compiled modules, so compile them now and skip checks of source times.
"$folder/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$packages"
chmod -R a+rX,go-w "$folder"
