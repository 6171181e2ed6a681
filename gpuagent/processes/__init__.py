"""PID to container, by the kernel's word."""
