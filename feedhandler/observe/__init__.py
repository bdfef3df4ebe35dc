"""The outside view of a running process: metrics, health, subscriptions, HTTP, systemd."""
