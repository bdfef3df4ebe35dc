"""The outside view of a running gateway: metrics, health, systemd."""
