"""How a running gateway is seen from outside: metrics, health, systemd."""
