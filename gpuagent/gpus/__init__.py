"""Where figures about GPUs come from: the seam `GpuSource`, NVML, and the simulated node."""
