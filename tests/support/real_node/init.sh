#!/bin/bash
# PID 1 of the node: mounts its own /run, /var/lib and /var/log, and runs containerd, the kubelet and kube-proxy. The node
# ends with it: the kernel ends all processes of the PID namespace, and drops its mounts and its network.
# Usage: init.sh FOLDER ASSETS NODE ADDRESS GATEWAY
set -eu
folder=$1 assets=$2 node=$3 address=$4 gateway=$5

mount --make-rshared /
mount -t tmpfs none /run
mount -t tmpfs none /var/log
mount -t tmpfs none /var/lib
mkdir -p /run/lock /run/netns /var/lib/containerd /var/lib/kubelet
mount --bind "$folder/containerd" /var/lib/containerd
mount --bind "$folder/kubelet" /var/lib/kubelet

ip link set lo up
until ip link set eth0 up 2> /dev/null; do sleep 0.05; done
ip address add "$address/24" dev eth0
ip route add default via "$gateway" # it leads nowhere else
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables 2> /dev/null || true

run() { # name command...: starts a program again whenever it ends, as systemd does
  local name=$1
  shift
  while true; do
    "$@" >> "$folder/$name.log" 2>&1 || true
    sleep 0.5
  done
}
run containerd containerd --config "$folder/containerd.toml" &
run kubelet "$assets/kubelet" --config "$folder/kubelet.yaml" --kubeconfig "$folder/kubelet.kubeconfig" \
  --hostname-override "$node" --node-ip "$address" &
run kube-proxy "$assets/kube-proxy" --config "$folder/kube-proxy.yaml" &
wait
