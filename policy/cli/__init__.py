"""The commands of the policy package; each module loads what it needs only when its command runs."""
