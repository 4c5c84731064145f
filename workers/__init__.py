"""What happens on a device: judge, candidate, timing, profile. Never imported by `drkernel_q`."""
