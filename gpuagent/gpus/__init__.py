"""GPUs of the node: the interface `GpuSource`, and its implementation with NVIDIA's library NVML."""
