#!/bin/sh
# Prints the path of an interpreter of the newest Python that pyproject.toml names.
# Usage: newest-python.sh FOLDER
# Without one on the PATH, packages of Debian testing are unpacked in the folder; nothing is installed. They bring their
# own C library, which patchelf enters into the interpreter, so that it runs on an older Debian.
set -eu
release=$(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml | tail -n 1)
name=python$release
mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
folder=$(cd "$1" && pwd)
root=$folder/root
python=$root/usr/bin/$name

is_usable() {
  "$1" -c 'import ensurepip, ssl, venv'
}

unpack() {
  # shellcheck disable=SC2016 # apt replaces the variable
  archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 'debian/$')
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive testing main" > "$folder/sources.list"
  : > "$folder/status" # no package counts as installed, so that all libraries are downloaded, too
  cat > "$folder/apt.conf" << EOF
Dir::Cache "$folder/cache";
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "-";
Dir::State "$folder";
Dir::State::Status "$folder/status";
Acquire::Languages "none";
APT::Install-Recommends "false";
EOF
  export APT_CONFIG="$folder/apt.conf"
  timeout 60 apt-get update
  timeout 60 apt-get install --yes --download-only "$name-venv"
  for package in "$folder"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$root"
  done
  patchelf --set-interpreter "$root/usr$(patchelf --print-interpreter "$python")" --force-rpath \
    --set-rpath "$(echo "$root"/usr/lib/*-linux-gnu)" "$python"
  sed -i "s|'/usr/share/python-wheels|'$root/usr/share/python-wheels|" "$root/usr/lib/$name"/_sysconfigdata*.py
  is_usable "$python"
}

if is_usable "$name" 2> /dev/null; then
  python=$(command -v "$name")
elif ! is_usable "$python" 2> /dev/null; then
  trap 'echo "$name is not on the PATH, and cannot be unpacked: $(tail -n 1 "$folder/log")" >&2' EXIT
  unpack > "$folder/log" 2>&1
  trap - EXIT
fi
echo "$python"
