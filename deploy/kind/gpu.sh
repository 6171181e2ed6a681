#!/usr/bin/env bash
# Creates a KIND cluster in which pods use the GPUs of this machine, and checks each step before the next one.
# A failed check prints what is wrong and how to mend it. Usage: gpu.sh --help
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # ldconfig is there, and not on every user's PATH

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
config_file=${KAISHARE_TOOLKIT_CONFIG:-/etc/nvidia-container-runtime/config.toml}
wait_seconds=${KAISHARE_WAIT_SECONDS:-300}
cluster=kaishare
way=device-plugin
dry_run=no
problems=0

usage() {
  cat <<'TEXT'
Usage: deploy/kind/gpu.sh [--with device-plugin|gpu-operator] [--name NAME] [--dry-run]
       deploy/kind/gpu.sh --explain-log FILE

Creates the KIND cluster NAME (kaishare) with the GPUs of this machine.

  --with device-plugin   install NVIDIA's container toolkit in the node, the device plugin and GPU feature discovery (default)
  --with gpu-operator    install NVIDIA's GPU operator, which brings all three
  --name NAME            name of the cluster
  --dry-run              run every check that changes nothing, and print the commands that would change something
  --explain-log FILE     say what a log of the device plugin or an Event of its pod means; - reads standard input

Exit status: 0 if no check failed, 1 if a check failed or a log has no known symptom, 2 for wrong options.
Environment: KAISHARE_WAIT_SECONDS (300), KAISHARE_TOOLKIT_CONFIG (/etc/nvidia-container-runtime/config.toml)
TEXT
}

ok() { printf 'ok       %s\n' "$*"; }

# Reports a failed check. A dry run continues, so that one run shows every problem.
problem() {
  printf 'PROBLEM  %s\n' "$1" >&2
  shift
  local line
  for line in "$@"; do printf '         %s\n' "$line" >&2; done
  problems=$((problems + 1))
  [ "$dry_run" = yes ] || exit 1
}

# Runs a command that changes something; a dry run prints it.
change() {
  if [ "$dry_run" = yes ]; then
    printf 'would    %s\n' "$*"
  else
    printf 'run      %s\n' "$*"
    "$@"
  fi
}

# Says in words what a log means, and how to mend it. Returns 1 if the log has no known symptom.
explain() {
  local log=$1
  case $log in
    *'no runtime for "nvidia" is configured'*)
      problem "containerd in the node has no runtime named nvidia." \
        "The RuntimeClass nvidia exists, and its handler does not. Configure it in the node, then restart containerd:" \
        "docker exec $cluster-control-plane nvidia-ctk runtime configure --runtime=containerd --set-as-default" \
        "docker exec $cluster-control-plane systemctl restart containerd"
      ;;
    *'RuntimeClass "nvidia" not found'*)
      problem "The cluster has no RuntimeClass nvidia, and the API server refuses pods that name it." \
        "kubectl apply -f $here/runtimeclass.yaml"
      ;;
    *'Driver/library version mismatch'* | *LIB_RM_VERSION_MISMATCH*)
      problem "The driver's library and its kernel module have different versions, as after an update of the driver." \
        "Restart the machine, or reload the nvidia kernel modules."
      ;;
    *DRIVER_NOT_LOADED* | *'Driver Not Loaded'* | *"couldn't communicate with the NVIDIA driver"*)
      problem "The NVIDIA kernel module is not loaded." \
        "Try: sudo modprobe nvidia. If that fails, install the driver for the running kernel: $(uname -r)"
      ;;
    *[Ii]'ncompatible strategy detected auto'* | *'invalid device discovery strategy'*)
      problem "The device plugin sees no driver in its container (\"Incompatible strategy detected auto\")." \
        "It was started without NVIDIA's runtime, or the node has no GPU. In this order:" \
        "1. docker exec $cluster-control-plane nvidia-smi -L must list the GPUs of the node" \
        "2. kubectl get runtimeclass nvidia must find it, and the plugin's pod must name it" \
        "3. containerd in the node must know the runtime: nvidia-ctk runtime configure --runtime=containerd"
      ;;
    *ERROR_LIBRARY_NOT_FOUND* | *'could not load NVML library'* | *'libnvidia-ml.so.1: cannot open'*)
      problem "The container has no libnvidia-ml.so.1 (ERROR_LIBRARY_NOT_FOUND): it was started without NVIDIA's runtime." \
        "Its pod needs the RuntimeClass nvidia, or containerd in the node needs nvidia as its default runtime:" \
        "docker exec $cluster-control-plane nvidia-ctk runtime configure --runtime=containerd --set-as-default" \
        "docker exec $cluster-control-plane systemctl restart containerd"
      ;;
    *'No devices found. Waiting indefinitely'*)
      problem "The device plugin runs and finds no GPU." \
        "docker exec $cluster-control-plane nvidia-smi -L must list the GPUs of the node."
      ;;
    *'Insufficient Permissions'* | *'Failed to initialize NVML: Unknown Error'*)
      problem "The container may no longer open the GPU's device files, as after a reload of systemd on the machine." \
        "Delete the pod, so that it is started again. If that does not help, delete the cluster and run this script again."
      ;;
    *'ldcache error'*)
      problem "NVIDIA's container toolkit could not run ldconfig for the container." \
        "Update nvidia-container-toolkit, on the machine and in the node."
      ;;
    *) return 1 ;;
  esac
}

check_programs() {
  local program missing=()
  for program in docker kind kubectl helm; do
    command -v "$program" > /dev/null || missing+=("$program")
  done
  if [ "${#missing[@]}" -gt 0 ]; then
    problem "not installed: ${missing[*]}" "Install them, and run this script again."
  else
    ok "docker, kind, kubectl and helm are installed"
  fi
}

check_driver() {
  local output
  if ! command -v nvidia-smi > /dev/null; then
    problem "nvidia-smi is not installed: this machine has no NVIDIA driver." \
      "Install the driver of your distribution. On a machine without a GPU, use docs/start/laptop.md."
    return
  fi
  if ! output=$(nvidia-smi -L 2>&1); then
    explain "$output" || problem "nvidia-smi fails: $output"
    return
  fi
  case $output in
    *GPU-*) ok "driver: $(grep -c GPU- <<< "$output") GPU(s), $(head -n 1 <<< "$output")" ;;
    *) problem "The driver runs and finds no GPU: $output" ;;
  esac
}

check_library() {
  local path
  path=$(ldconfig -p 2> /dev/null | sed -n 's/.*libnvidia-ml\.so\.1 .*=> //p') || path=''
  path=${path%%$'\n'*} # a 32-bit library may follow
  if [ -z "$path" ]; then
    for path in /usr/lib/wsl/lib/libnvidia-ml.so.1 /run/opengl-driver/lib/libnvidia-ml.so.1 ''; do
      [ -z "$path" ] || [ ! -e "$path" ] || break
    done
  fi
  if [ -n "$path" ]; then
    ok "library: $path"
  else
    problem "libnvidia-ml.so.1 is not in the cache of the dynamic linker (ERROR_LIBRARY_NOT_FOUND)." \
      "The driver's user-space libraries are missing, or ldconfig has not run since they were installed: sudo ldconfig"
  fi
}

check_docker() {
  local output runtime
  if ! output=$(docker info --format '{{.DefaultRuntime}} {{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>&1); then
    case $output in
      *'permission denied'*)
        problem "This user may not use Docker." "Add the user to the group docker, or run this script with sudo."
        ;;
      *) problem "Docker does not answer." "$output" "Start it: sudo systemctl start docker" ;;
    esac
    return
  fi
  if ! command -v nvidia-ctk > /dev/null; then
    problem "NVIDIA's container toolkit is not installed: nvidia-ctk is missing." \
      "Install the package nvidia-container-toolkit."
    return
  fi
  runtime=${output%% *}
  case " ${output#* } " in
    *' nvidia '*) ;;
    *)
      problem "Docker has no runtime named nvidia." \
        "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default && sudo systemctl restart docker"
      return
      ;;
  esac
  if [ "$runtime" != nvidia ]; then
    problem "Docker's default runtime is $runtime, and KIND's nodes get GPUs only from the default runtime nvidia." \
      "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default && sudo systemctl restart docker"
    return
  fi
  ok "docker: the default runtime is nvidia"
}

check_volume_mounts() {
  if grep -Eqs '^[[:space:]]*accept-nvidia-visible-devices-as-volume-mounts[[:space:]]*=[[:space:]]*true' "$config_file"; then
    ok "toolkit: accepts devices as volume mounts"
  else
    problem "The toolkit ignores devices that are requested as volume mounts, which is how the KIND node requests GPUs ($config_file)." \
      "sudo nvidia-ctk config --set accept-nvidia-visible-devices-as-volume-mounts=true --in-place"
  fi
}

cluster_exists() {
  local clusters
  clusters=$(kind get clusters 2> /dev/null) || clusters=''
  grep -qx "$cluster" <<< "$clusters"
}

create_cluster() {
  if cluster_exists; then
    ok "cluster: $cluster exists"
  else
    change kind create cluster --name "$cluster" --config "$here/cluster.yaml"
  fi
}

# The checks of the node need a cluster, which a dry run may lack.
check_node() {
  local node=$cluster-control-plane output
  if [ "$dry_run" = yes ] && ! cluster_exists; then
    printf 'would    check that the node %s sees the GPUs\n' "$node"
    return
  fi
  if ! output=$(docker exec "$node" nvidia-smi -L 2>&1); then
    problem "The node $node sees no GPU: $output" \
      "The cluster was created before Docker was configured, or without deploy/kind/cluster.yaml." \
      "kind delete cluster --name $cluster, and run this script again."
    return
  fi
  ok "node: sees $(grep -c GPU- <<< "$output") GPU(s)"
  # KIND's copy of /proc/driver/nvidia hides devices from the toolkit. A node without the copy needs nothing.
  if docker exec "$node" grep -qs ' /proc/driver/nvidia' /proc/mounts; then
    change docker exec "$node" umount -R /proc/driver/nvidia
  fi
}

install_toolkit() {
  local node=$cluster-control-plane
  change docker exec "$node" bash -c 'set -e
    command -v nvidia-ctk > /dev/null || {
      apt-get update -qq && apt-get install -y -qq curl gpg
      curl -fsSL https://nvidia.github.io/libnvidia-container/gpgkey | gpg --dearmor --yes -o /usr/share/keyrings/nvidia.gpg
      curl -fsSL https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list \
        | sed "s#deb https://#deb [signed-by=/usr/share/keyrings/nvidia.gpg] https://#" > /etc/apt/sources.list.d/nvidia.list
      apt-get update -qq && apt-get install -y -qq nvidia-container-toolkit
    }'
  change docker exec "$node" nvidia-ctk runtime configure --runtime=containerd --set-as-default
  change docker exec "$node" systemctl restart containerd
}

install_device_plugin() {
  install_toolkit
  change kubectl --context "kind-$cluster" apply -f "$here/runtimeclass.yaml"
  change kubectl --context "kind-$cluster" label node "$cluster-control-plane" nvidia.com/gpu.present=true --overwrite
  change helm --kube-context "kind-$cluster" upgrade --install nvidia-device-plugin nvidia-device-plugin \
    --repo https://nvidia.github.io/k8s-device-plugin --version 0.17.4 --namespace nvidia --create-namespace \
    --set runtimeClassName=nvidia --set gfd.enabled=true
}

install_gpu_operator() {
  change helm --kube-context "kind-$cluster" upgrade --install gpu-operator gpu-operator \
    --repo https://helm.ngc.nvidia.com/nvidia --namespace gpu-operator --create-namespace --set driver.enabled=false
}

# Prints logs and Events of the pods that report GPUs; a pod that has not started has Events only.
device_plugin_log() {
  local namespace=$1
  kubectl --context "kind-$cluster" -n "$namespace" logs -l "$2" --tail=100 --all-containers --prefix 2>&1 || true
  kubectl --context "kind-$cluster" -n "$namespace" get events -o jsonpath='{range .items[*]}{.message}{"\n"}{end}' 2>&1 || true
}

check_gpus() {
  local namespace=$1 selector=$2 waited=0 count='' log
  if [ "$dry_run" = yes ]; then
    printf 'would    wait up to %s s until the node reports nvidia.com/gpu\n' "$wait_seconds"
    return
  fi
  while :; do
    count=$(kubectl --context "kind-$cluster" get nodes -o jsonpath='{.items[*].status.allocatable.nvidia\.com/gpu}' 2> /dev/null) || count=''
    case $count in
      '' | 0) ;;
      *) break ;;
    esac
    if [ "$waited" -ge "$wait_seconds" ]; then
      log=$(device_plugin_log "$namespace" "$selector")
      explain "$log" || problem "The node reports no GPU after $waited s, for a reason that this script does not know:" "$log"
      return
    fi
    sleep 5
    waited=$((waited + 5))
  done
  ok "cluster: the node reports $count GPU(s)"
  if [ -z "$(kubectl --context "kind-$cluster" get nodes -o jsonpath='{.items[*].metadata.labels.nvidia\.com/gpu\.memory}' 2> /dev/null)" ]; then
    problem "The node has no label nvidia.com/gpu.memory, from which KAI knows the size of a GPU." \
      "GPU feature discovery writes it; look at its pods: kubectl --context kind-$cluster -n $namespace get pods"
    return
  fi
  ok "cluster: GPU feature discovery has labelled the node"
}

while [ $# -gt 0 ]; do
  case $1 in
    --with | --name | --explain-log)
      [ $# -ge 2 ] || { printf '%s needs a value\n' "$1" >&2; exit 2; }
      case $1 in
        --with) way=$2 ;;
        --name) cluster=$2 ;;
        --explain-log)
          text=$(cat -- "$2") || exit 2
          dry_run=yes # a symptom that is found does not end the script
          explain "$text" && exit 0
          printf 'no known symptom in %s\n' "$2" >&2
          exit 1
          ;;
      esac
      shift 2
      ;;
    --dry-run) dry_run=yes; shift ;;
    --help | -h) usage; exit 0 ;;
    *) printf 'unknown option: %s\n' "$1" >&2; usage >&2; exit 2 ;;
  esac
done
case $way in
  device-plugin | gpu-operator) ;;
  *) printf 'unknown way: %s; allowed: device-plugin, gpu-operator\n' "$way" >&2; exit 2 ;;
esac

check_programs
check_driver
check_library
check_docker
check_volume_mounts
create_cluster
check_node
case $way in
  device-plugin)
    install_device_plugin
    check_gpus nvidia app.kubernetes.io/name=nvidia-device-plugin
    ;;
  gpu-operator)
    install_gpu_operator
    check_gpus gpu-operator app=nvidia-device-plugin-daemonset
    ;;
esac
if [ "$problems" -gt 0 ]; then
  printf '%s problem(s)\n' "$problems" >&2
  exit 1
fi
if [ "$dry_run" = no ]; then
  printf 'Next: install KAI and kaishare as docs/start/one-gpu.md describes.\n'
fi
