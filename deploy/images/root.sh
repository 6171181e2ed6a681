#!/bin/sh
# Creates the root file system of an image: the folder of a service, Python, and the shared libraries that both load.
# It has no shell, no package manager, no compiler and no program but Python. Debian's libraries keep their entries in
# var/lib/dpkg/status.d, where scanners for vulnerabilities look in images without dpkg.
# Usage: root.sh FOLDER ROOT; install.sh made FOLDER, and ROOT does not exist yet
set -eu
folder=$1 root=$2
prefix=$("$folder/bin/python" -c 'import sys; print(sys.base_prefix)')
library=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

keep() {
  mkdir -p "$root$(dirname "$1")"
  cp -a "$1" "$root$1"
}

mkdir -p "$root/etc/ssl" "$root/var/lib/dpkg/status.d"
for name in bin lib lib64 sbin; do
  mkdir -p "$root/usr/$name"
  ln -s "usr/$name" "$root/$name"
done
mkdir "$root/dev" "$root/proc" "$root/run" "$root/sys"
mkdir -m 1777 "$root/tmp"
echo 'kaishare:x:65532:65532:kaishare:/nonexistent:/nonexistent' > "$root/etc/passwd"
echo 'kaishare:x:65532:' > "$root/etc/group"
# NVIDIA's container toolkit chooses the folder of the driver's libraries by debian_version.
for file in /etc/debian_version /etc/ld.so.conf /etc/ld.so.conf.d /etc/nsswitch.conf /etc/os-release /usr/lib/os-release \
  /etc/ssl/openssl.cnf /etc/ssl/certs/ca-certificates.crt /usr/lib/ssl/certs /usr/lib/ssl/openssl.cnf; do
  if [ -e "$file" ]; then keep "$file"; fi
done

for file in "$prefix"/bin/python "$prefix"/bin/python3 "$prefix"/bin/python3.[0-9]*; do
  case $file in
    *-*) ;; # python3-config, python3.11-gdb.py
    *) if [ -e "$file" ]; then keep "$file"; fi ;; # Debian's own Python has no `python`
  esac
done
mkdir -p "$root$library" "$root$folder"
tar -C "$library" -c --exclude=__pycache__ --exclude=./site-packages --exclude='./config-*' --exclude=./test --exclude='*/test' \
  --exclude='*/tests' --exclude=./ensurepip --exclude=./venv --exclude=./distutils --exclude=./idlelib --exclude=./lib2to3 --exclude=./pydoc_data \
  --exclude=./tkinter --exclude=./turtledemo --exclude=./turtle.py --exclude='./ctypes/macholib/fetch_*' --exclude=./curses --exclude=./sqlite3 --exclude=./dbm \
  --exclude='./lib-dynload/_ctypes_test.*' --exclude='./lib-dynload/_curses*' --exclude='./lib-dynload/_*dbm.*' \
  --exclude='./lib-dynload/_sqlite3.*' --exclude='./lib-dynload/_test*' --exclude='./lib-dynload/_tkinter.*' \
  --exclude='./lib-dynload/*xx*' --exclude='./lib-dynload/nis.*' --exclude='./lib-dynload/ossaudiodev.*' \
  --exclude='./lib-dynload/readline.*' . | tar -C "$root$library" -x
"$folder/bin/python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$root$library"
cp -a "$folder/." "$root$folder"

loaded=$(mktemp)
trap 'rm -f "$loaded"' EXIT
find "$root" -type f \( -name '*.so' -o -name '*.so.[0-9]*' -o -path "$root$prefix/bin/*" \) -exec ldd {} + > "$loaded"
if grep 'not found' "$loaded" >&2; then exit 1; fi
c_library=$(sed -n 's/.*libc\.so\.6 => \(\/[^ ]*\) .*/\1/p' "$loaded" | head -n 1)
{
  sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' "$loaded"
  echo "$(dirname "$c_library")/libgcc_s.so.1" # glibc loads it when a thread ends
} | sort -u | while read -r file; do
  case $file in
    "$root"/*) continue ;;
    /lib/* | /lib64/*) target=$root/usr$file ;;
    *) target=$root$file ;;
  esac
  mkdir -p "$(dirname "$target")"
  cp -L "$file" "$target"
  case $file in "$prefix"/*) continue ;; esac
  # Debian lists a library below /lib or below /usr/lib, which are one folder.
  package=$(dpkg -S "$file" 2> /dev/null || dpkg -S "/usr$file" 2> /dev/null || dpkg -S "${file#/usr}")
  package=${package%%:*}
  dpkg-query --status "$package" > "$root/var/lib/dpkg/status.d/$package"
done
if [ "$(id -u)" = 0 ]; then ldconfig -r "$root"; fi
find "$root$library" -name '*.py' -exec chmod a-x {} +
chmod -R a+rX,go-w "$root"
chmod 1777 "$root/tmp"
